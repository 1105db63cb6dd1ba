"""The objective `distill`: every mask row is to say what the teacher says at the same place.

The teacher is the base model reading its own answer; the student is a chain of masks that has not read what lies
between its anchor and the place. The loss is the divergence (KL) of the student's distribution from the teacher's.

Shape letters: B texts, T tokens, A anchors, X = B x A chains, K masks of a chain, N = X x K mask rows, C model width,
V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from stridelm.model.passes import ChainPass
from stridelm.model.student import OutputHead, Student, read_texts
from stridelm.train.batches import Batch
from stridelm.train.settings import TrainSettings

_CHUNK_LOGITS = 2**27
"""Logits that are held at once for the loss."""

Head = Callable[[torch.Tensor], torch.Tensor]


class Distill:
    """One forward is teacher and student both."""

    def __init__(self, teacher: Any, student: Student, settings: TrainSettings) -> None:
        self.teacher = teacher
        self.student = student
        self.head = OutputHead(teacher)
        self.embedding = teacher.get_input_embeddings()
        self.settings = settings
        self.device = teacher.device
        divergence = torch.compile(_divergence, dynamic=False) if self.device.type == "cuda" else _divergence
        self._divergence: Callable[..., torch.Tensor] = divergence

    def inputs(self, batch: Batch, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A batch on the device: ids, anchors, and every mask row's share of the loss."""
        parts = batch.ids_BT, batch.anchors_BA, self._weights(batch, step)
        ids_BT, anchors_BA, weights_N = (torch.from_numpy(part).to(self.device) for part in parts)
        return ids_BT, anchors_BA, weights_N

    def loss(self, ids_BT: torch.Tensor, anchors_BA: torch.Tensor, weights_N: torch.Tensor) -> torch.Tensor:
        texts, hidden = read_texts(self.teacher, ids_BT)
        chains = ChainPass(texts, anchors_BA, self.settings.masks)
        # A mask and the real row that it stands for share a position: there the teacher's answer lies.
        width = ids_BT.shape[1]
        places = (
            chains.positions.clamp(max=width - 1)
            + (torch.arange(len(ids_BT), device=self.device) * width)[:, None, None]
        )
        places_N = places.flatten()
        outputs_XKC = self.student.outputs(chains)
        judged, shares = [outputs_XKC.flatten(0, 1)], [1.0]
        if self.student.sequential is not None:
            before_XKC = self.embedding(ids_BT.flatten()[places_N]).view_as(outputs_XKC)
            moved_XKC = outputs_XKC + self._moves(outputs_XKC, before_XKC)
            judged, shares = [moved_XKC.flatten(0, 1), judged[0]], [1.0, self.settings.plain_weight]
        kept = [(rows, share) for rows, share in zip(judged, shares, strict=True) if share]
        return _ChunkedLoss.apply(
            self._divergence, self.head, hidden[places_N], weights_N, [share for _, share in kept],
            *(rows for rows, _ in kept),
        )  # fmt: skip

    def _moves(self, outputs_XKC: torch.Tensor, before_XKC: torch.Tensor) -> torch.Tensor:
        assert self.student.sequential is not None
        with torch.autocast(self.device.type, self.teacher.dtype, enabled=self.teacher.dtype != torch.float32):
            return self.student.sequential.along(outputs_XKC, before_XKC)

    def _weights(self, batch: Batch, step: int) -> np.ndarray:
        """Every mask row's share of the loss; they sum to one. Nothing beyond the text's end counts."""
        settings = self.settings
        depth_K = np.arange(1, settings.k)
        weights = settings.depth_decay ** (depth_K - 1.0) * (
            batch.anchors_BA[..., None] + depth_K < batch.lengths_B[:, None, None] - 1
        )
        if settings.random_k:
            chance = np.random.default_rng([settings.seed, 2, step])
            longest_BA = chance.integers(1, settings.k, batch.anchors_BA.shape)
            weights = weights * (depth_K <= longest_BA[..., None])
        return (weights / max(weights.sum(), 1e-9)).astype(np.float32).flatten()


def _divergence(
    head: Head, teacher_nC: torch.Tensor, weights_n: torch.Tensor, shares: list[float], *judged: torch.Tensor
) -> torch.Tensor:
    with torch.no_grad():
        target_nV = head(teacher_nC).log_softmax(dim=-1)
    total = weights_n.new_zeros(())
    for share, rows_nC in zip(shares, judged, strict=True):
        said_nV = head(rows_nC).log_softmax(dim=-1)
        apart_n = functional.kl_div(said_nV, target_nV, reduction="none", log_target=True).sum(dim=-1)
        total = total + share * (apart_n * weights_n).sum()
    return total


class _ChunkedLoss(torch.autograd.Function):
    """The loss in parts of so many rows, each with its gradient at once: the logits of all rows never lie in memory."""

    @staticmethod
    def forward(
        ctx: Any,
        divergence: Callable[..., torch.Tensor],
        head: OutputHead,
        teacher_NC: torch.Tensor,
        weights_N: torch.Tensor,
        shares: list[float],
        *judged: torch.Tensor,
    ) -> torch.Tensor:
        rows = max(1, _CHUNK_LOGITS // head.linear.weight.shape[0])
        # Parts of one size where that is possible: a compiled function sees one shape.
        count = len(weights_N)
        parts = -(-count // rows)
        rows = -(-count // parts)
        total = weights_N.new_zeros(())
        gradients = [torch.empty_like(part) for part in judged]
        for start in range(0, count, rows):
            span = slice(start, start + rows)
            leaves = [part[span].detach().requires_grad_() for part in judged]
            with torch.enable_grad():
                loss = divergence(head, teacher_NC[span], weights_N[span], shares, *leaves)
                found = torch.autograd.grad(loss, leaves)
            for gradient, piece in zip(gradients, found, strict=True):
                gradient[span] = piece
            total += loss.detach()
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[Any, ...]:
        return (None,) * 5 + tuple(gradient * upstream[0] for gradient in ctx.saved_tensors)
