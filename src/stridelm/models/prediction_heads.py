"""Prediction heads: what comes behind a row, from that row's output alone.

Each head turns the final hidden state of a row, which the output head reads, into another one that goes through the
same output head. On a model's own rows they are Medusa's (`backends/torch/heads.py`); on the last mask of a chain they
propose what comes behind it, without a row each (`tail heads` of an adapter).

Shape letters: X rows, H heads, S size of a head, C model width.
"""

import math

import torch
from torch import nn
from torch.nn import functional


class PredictionHeads(nn.Module):
    """All heads in two products: h + down(silu(up h)). Initially each head predicts what the row itself does."""

    def __init__(self, width: int, heads: int, size: int) -> None:
        super().__init__()
        self.up_HSC = nn.Parameter(torch.randn(heads, size, width) / math.sqrt(width))
        self.down_HCS = nn.Parameter(torch.zeros(heads, width, size))

    def __len__(self) -> int:
        return len(self.up_HSC)

    def forward(self, hidden_XC: torch.Tensor) -> torch.Tensor:
        """X x H x C, computed in the precision of the input."""
        up_HSC, down_HCS = (factor.to(hidden_XC.dtype) for factor in (self.up_HSC, self.down_HCS))
        inner_XHS = functional.linear(hidden_XC, up_HSC.flatten(0, 1)).unflatten(-1, up_HSC.shape[:2])
        return hidden_XC[:, None] + torch.einsum("xhs,hcs->xhc", functional.silu(inner_XHS), down_HCS)
