"""A copy of the target that shares its weights ("twin"), in which some linear layers have a low-rank part.

The target itself is not changed. Modules that contain a gated layer are copied shallowly; all others, including the
weights and the attention layers with their caches, are the target's. So weights and KV are held once, and changes to
the twin's layers cannot affect what the target computes.

Shape letters: X chains of a draft pass, K rows of a chain (the first is a real token, the others are masks), I inputs
and O outputs of a layer, R rank.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(slots=True)
class Chains:
    """How many rows each chain of the current pass has. One object is shared by all layers of a twin."""

    length: int = 1


@dataclass(frozen=True, slots=True)
class LowRank:
    """A low-rank part, added to the columns `first` to `last` of a product."""

    first: int
    last: int
    down_RI: torch.Tensor
    up_OR: torch.Tensor


class GatedProduct(nn.Module):
    """A linear layer of vLLM with low-rank parts for the mask rows of a pass."""

    def __init__(self, base: nn.Module, parts: list[LowRank], chains: Chains) -> None:
        super().__init__()
        self.base = base
        self.chains = chains
        # The parts read the same input, so their first factors are computed in one product.
        self.down_IR = torch.cat([part.down_RI for part in parts]).t().contiguous()
        self.ups = [(part.first, part.last, part.up_OR.t().contiguous()) for part in parts]

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        product, bias = self.base(x)
        length = self.chains.length
        if length > 1:
            masks_XKI = x.view(-1, length, x.shape[-1])[:, 1:]
            product_XKO = product.view(-1, length, product.shape[-1])[:, 1:]
            low_XKR = (masks_XKI @ self.down_IR).chunk(len(self.ups), dim=-1)
            for (first, last, up_RO), part_XKR in zip(self.ups, low_XKR, strict=True):
                product_XKO[..., first:last] += part_XKR @ up_RO
        return product, bias


def twin_of(module: nn.Module, gated: Mapping[str, nn.Module], path: str = "") -> nn.Module:
    """A shallow copy of the module, with the submodules at the paths in `gated` replaced."""
    if path in gated:
        return gated[path]
    below = f"{path}." if path else ""
    if not any(name.startswith(below) for name in gated):
        return module
    copied: Any = copy.copy(module)
    children = {name: twin_of(child, gated, f"{below}{name}") for name, child in module.named_children()}
    copied.__dict__["_modules"] = children
    if hasattr(copied, "do_not_compile"):
        # The target was compiled: a compiled copy would run the target's graph.
        copied.do_not_compile = True
    return copied
