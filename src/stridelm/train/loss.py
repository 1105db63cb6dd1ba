"""The loss of rows against their targets, in chunks: the logits of all rows are never in memory at once.

Shape letters: N rows, n rows of a chunk, C model width, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from stridelm.train.students.student import CHUNK_LOGITS, OutputHead

ChunkLoss = Callable[..., torch.Tensor]
"""The loss of a chunk of rows; made by `RowLoss`."""


class RowLoss:
    """The weighted sum of the rows' divergences from their targets."""

    def __init__(self, head: OutputHead, teacher_head: OutputHead, labels: str) -> None:
        """`labels` says what the targets are: tokens (text), or the teacher's final hidden states, from which either
        the whole distribution (soft) or the likeliest token (hard) is the label."""
        self.head = head
        is_compiled = head.linear.weight.is_cuda

        def chunk_loss(
            weight_VC: torch.Tensor, targets_n: torch.Tensor, weights_n: torch.Tensor, shares: list[float], *judged: Any
        ) -> torch.Tensor:
            target = _target(teacher_head, labels, targets_n)
            total = weights_n.new_zeros(())
            for share, rows_nC in zip(shares, judged, strict=True):
                said_nV = head.with_weight(rows_nC, weight_VC).log_softmax(dim=-1)
                total = total + share * (_divergence(said_nV, target) * weights_n).sum()
            return total

        self._chunk_loss: ChunkLoss = torch.compile(chunk_loss, dynamic=False) if is_compiled else chunk_loss

    def __call__(
        self, judged: list[torch.Tensor], shares: list[float], targets: torch.Tensor, weights_N: torch.Tensor
    ) -> torch.Tensor:
        """`judged`: one or more versions of the student's final hidden states, N x C each; `shares`: the weight of each
        version in the loss."""
        return _ChunkedLoss.apply(self._chunk_loss, targets, weights_N, shares, self.head.linear.weight, *judged)


def _target(head: OutputHead, labels: str, targets_n: torch.Tensor) -> torch.Tensor:
    if labels == "text":
        return targets_n
    with torch.no_grad():
        logits_nV = head(targets_n)
        return logits_nV.argmax(dim=-1) if labels == "hard" else logits_nV.log_softmax(dim=-1)


def _divergence(said_nV: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if target.dim() == 1:
        return functional.nll_loss(said_nV, target, reduction="none")
    # The student's vocabulary may have one more token than the teacher's: the mask.
    said_nV = said_nV[:, : target.shape[1]]
    return functional.kl_div(said_nV, target, reduction="none", log_target=True).sum(dim=-1)


class _ChunkedLoss(torch.autograd.Function):
    """Computes each chunk's gradient together with its loss, so that no logits are kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        chunk_loss: ChunkLoss,
        targets: torch.Tensor,
        weights_N: torch.Tensor,
        shares: list[float],
        weight_VC: torch.Tensor,
        *judged: torch.Tensor,
    ) -> torch.Tensor:
        # Chunks of equal size if possible, so that a compiled function sees one shape.
        count = len(weights_N)
        chunks = -(-count // max(1, CHUNK_LOGITS // len(weight_VC)))
        rows = -(-count // chunks)
        total = weights_N.new_zeros(())
        is_trained = ctx.needs_input_grad[4]
        leaf_VC = weight_VC.detach().requires_grad_(is_trained)
        gradients = [torch.empty_like(part) for part in judged]
        of_weight_VC = torch.zeros_like(weight_VC) if is_trained else None
        for start in range(0, count, rows):
            span = slice(start, start + rows)
            leaves = [part[span].detach().requires_grad_() for part in judged]
            with torch.enable_grad():
                loss = chunk_loss(leaf_VC, targets[span], weights_N[span], shares, *leaves)
                found = torch.autograd.grad(loss, [*leaves, leaf_VC] if is_trained else leaves)
            for gradient, piece in zip(gradients, found, strict=False):
                gradient[span] = piece
            if of_weight_VC is not None:
                of_weight_VC += found[-1]
            total += loss.detach()
        ctx.save_for_backward(of_weight_VC, *gradients)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[Any, ...]:
        scaled = (None if gradient is None else gradient * upstream[0] for gradient in ctx.saved_tensors)
        return (None,) * 4 + tuple(scaled)
