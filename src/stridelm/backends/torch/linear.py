"""Linear layers whose weights are stored in the order in which their product reads them, so that on a CPU a pass over
a few rows costs little more than a pass over one row.

Plain `nn.Linear` in float32 repacks its weight on every call with more than a few rows. Three storage orders avoid that
(figures in docs/decisions.md):

    panels       for our own products in C++, if there is a compiler: up to a dozen rows for the price of one
    transposed   in x out, for MKL on Intel: as fast as `nn.Linear` at one row, a third of its time at four
    packed       oneDNN's own blocks, otherwise: its batch hint must be None, or the layout fits one width only

Layers that read the same input (query, key, value; gate, up) are stored as one product: fewer calls, and work that
divides evenly among threads.
"""

import torch
from torch import nn

from stridelm.backends.common.processor import processor_entry
from stridelm.backends.torch import few_rows
from stridelm.backends.torch.few_rows import PanelProduct

_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class TransposedLinear:
    """One or more linear layers of the same input as one product, weights as in x out."""

    def __init__(self, linears: list[nn.Linear]) -> None:
        self.weight_t = _joined_weight(linears).t().contiguous()
        self.bias = _joined_bias(linears)
        self.in_features, self.out_features = self.weight_t.shape

    @property
    def weight(self) -> torch.Tensor:
        """Out x in, as a view."""
        return self.weight_t.t()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        product = torch.matmul(x, self.weight_t)
        return product if self.bias is None else product + self.bias


class PackedLinear:
    """The same in oneDNN's own storage order."""

    def __init__(self, linears: list[nn.Linear]) -> None:
        weight = _joined_weight(linears)
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self.bias = _joined_bias(linears)
        self.out_features, self.in_features = weight.shape

    @property
    def weight(self) -> torch.Tensor:
        """Out x in, unpacked into new memory."""
        return self.packed.to_dense()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel() == 0:
            return x.new_empty((*x.shape[:-1], self.out_features))
        return torch.ops.mkldnn._linear_pointwise.default(x, self.packed, self.bias, "none", [], "")


class PanelLinear:
    """The same in panels. The first factors of low-rank parts can be stacked under the weight."""

    def __init__(self, linears: list[nn.Linear]) -> None:
        weight = _joined_weight(linears)
        self.product = PanelProduct(weight)
        self.bias = _joined_bias(linears)
        self.out_features, self.in_features = weight.shape

    @property
    def weight(self) -> torch.Tensor:
        """Out x in, in new memory."""
        product = self.product
        panels = product.panels[: -(-self.out_features // product.width)]
        return panels.transpose(1, 2).reshape(-1, self.in_features)[: self.out_features]

    def stack(self, downs: list[torch.Tensor]) -> list[int]:
        """Stack these factors (rank x in) under the weight. Returns the column at which each starts in `stacked`."""
        self.product = PanelProduct(self.weight, *downs)
        return self.product.starts[1:]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._with_bias(self.product(x.reshape(-1, self.in_features), self.out_features)).view(
            *x.shape[:-1], self.out_features
        )

    def stacked(self, x: torch.Tensor) -> torch.Tensor:
        """Rows x all columns: those of the weight, then those of the stacked factors."""
        return self._with_bias(self.product(x.reshape(-1, self.in_features), self.product.outputs))

    def _with_bias(self, product_QO: torch.Tensor) -> torch.Tensor:
        if self.bias is not None:
            product_QO[:, : self.out_features] += self.bias
        return product_QO


StoredLinear = PanelLinear | TransposedLinear | PackedLinear


def best_storage(device: torch.device, dtype: torch.dtype) -> type[StoredLinear] | None:
    """The storage order for this processor; None keeps `nn.Linear`. Chosen by what is available, not by timing: the
    same machine must give the same bits every time. Only float32: bfloat16 is slow on CPUs without instructions for
    it."""
    if device.type != "cpu" or dtype != torch.float32:
        return None
    if few_rows.library() is not None:
        return PanelLinear
    if torch.backends.mkl.is_available() and processor_entry("vendor_id") == "GenuineIntel":
        return TransposedLinear
    if torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return PackedLinear
    return None


def store_linears(model: nn.Module, storage: type[StoredLinear]) -> int:
    """Replace every `nn.Linear` in the model by its stored form. Returns the number of replaced layers.

    The replacements are plain callables, not modules: calling a module costs as much as a small product.
    """
    replaced = 0
    # Only the parents: a list of the linear layers themselves would keep all their weights alive to the end.
    for parent in [module for module in model.modules() if type(module) is not nn.Linear]:
        linears = {name: child for name, child in parent.named_children() if type(child) is nn.Linear}
        replaced += len(linears)
        for names in _SIBLINGS:
            group = [linears[name] for name in names if name in linears]
            if len(group) == len(names) and _can_share(group):
                shared, first = Shared(storage(group)), 0
                for name in names:
                    last = first + linears.pop(name).out_features
                    replace(parent, name, Part(shared, first, last))
                    first = last
            group.clear()
        for name in list(linears):
            replace(parent, name, storage([linears.pop(name)]))
    return replaced


def replace(parent: nn.Module, name: str, by: object) -> None:
    """Replace a submodule by any callable."""
    delattr(parent, name)
    setattr(parent, name, by)


def _can_share(group: list[nn.Linear]) -> bool:
    return len({linear.in_features for linear in group}) == 1 and len({linear.bias is None for linear in group}) == 1


class Shared:
    """Several layers as one product. The first layer that is called computes it for all; the last one drops it."""

    def __init__(self, linear: StoredLinear) -> None:
        self.linear = linear
        # A single attribute that is read once and written once, since threads may share a model.
        self.latest: tuple[torch.Tensor, torch.Tensor] | None = None


class Part:
    """One of the layers that share a product; the model calls it in place of the original layer."""

    def __init__(self, shared: Shared, first: int, last: int) -> None:
        self.shared = shared
        self.first, self.last = first, last
        self.in_features, self.out_features = shared.linear.in_features, last - first

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        shared, latest = self.shared, self.shared.latest
        if latest is None or latest[0] is not x:
            latest = shared.latest = (x, shared.linear(x))
        if self.last == shared.linear.out_features:
            shared.latest = None
        return latest[1][..., self.first : self.last]


def _joined_weight(linears: list[nn.Linear]) -> torch.Tensor:
    weights = [linear.weight.detach() for linear in linears]
    return weights[0] if len(weights) == 1 else torch.cat(weights)


def _joined_bias(linears: list[nn.Linear]) -> torch.Tensor | None:
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    return torch.cat(biases) if biases else None
