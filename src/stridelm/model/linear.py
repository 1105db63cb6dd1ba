"""Linear layers packed once for oneDNN, so that a pass over a few rows on a CPU costs little more than one over one row.

Plain `nn.Linear` in float32 repacks its weight on every call with more than a row or two. The packed form keeps the
weight in oneDNN's own order. Layers that read the same input (query, key, value; gate, up) are packed as one product:
fewer calls, and work that divides evenly among threads.
"""

import torch
from torch import nn

_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Only float32: oneDNN's bfloat16 is slow on CPUs without the instructions for it."""
    return (
        device.type == "cpu"
        and dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def pack_linears(model: nn.Module) -> int:
    """Replace every `nn.Linear` in the model by its packed form; returns how many there were."""
    packed = 0
    # Only the parents: a list that held the linear layers themselves would keep their weights alive to the end.
    for parent in [module for module in model.modules() if type(module) is not nn.Linear]:
        linears = {name: child for name, child in parent.named_children() if type(child) is nn.Linear}
        for names in _SIBLINGS:
            group = [linears[name] for name in names if name in linears]
            if len(group) == len(names) and _can_share(group):
                shared = SharedLinear(group)
                first = 0
                for name, linear in zip(names, group, strict=True):
                    setattr(parent, name, Part(shared, first, first + linear.out_features))
                    first += linear.out_features
                    del linears[name]
                packed += len(group)
                del group, linear
        for name in list(linears):
            setattr(parent, name, PackedLinear([linears.pop(name)]))
            packed += 1
    return packed


def _can_share(group: list[nn.Linear]) -> bool:
    return len({linear.in_features for linear in group}) == 1 and len({linear.bias is None for linear in group}) == 1


class PackedLinear(nn.Module):
    """One or more linear layers of the same input as one product."""

    def __init__(self, linears: list[nn.Linear]) -> None:
        super().__init__()
        weights = [linear.weight.detach() for linear in linears]
        self.out_features = sum(linear.out_features for linear in linears)
        self.packed = torch.ops.mkldnn._reorder_linear_weight(
            weights[0] if len(weights) == 1 else torch.cat(weights), None
        )
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        self.bias = torch.cat(biases) if biases else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel() == 0:
            return x.new_empty((*x.shape[:-1], self.out_features))
        return torch.ops.mkldnn._linear_pointwise.default(x, self.packed, self.bias, "none", [], "")


class SharedLinear(PackedLinear):
    """Several layers as one product: the first that is called computes it for all, the last one read forgets it."""

    def __init__(self, linears: list[nn.Linear]) -> None:
        super().__init__(linears)
        self.input: torch.Tensor | None = None
        self.output: torch.Tensor | None = None

    def part(self, x: torch.Tensor, first: int, last: int) -> torch.Tensor:
        output = self.output
        if output is None or self.input is not x:
            output = self.output = self(x)
            self.input = x
        if last == self.out_features:
            self.input = self.output = None
        return output[..., first:last]


class Part(nn.Module):
    """One of the layers of a SharedLinear, in the place where the model looks for it."""

    def __init__(self, shared: SharedLinear, first: int, last: int) -> None:
        super().__init__()
        self.shared = shared
        self.first, self.last = first, last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shared.part(x, self.first, self.last)
