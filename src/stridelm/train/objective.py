"""What a student learns. Every objective turns a batch into one loss.

Chains (`ChainObjective`): each slot of a chain proposes a token, and is compared with a target. `distill`: the
teacher's prediction at the same position, reading its own answer. `online`: the teacher's prediction when it reads,
behind the anchor, the tokens that the student proposed (the critic). `ground-truth`: the text's token.

Rows (`RowObjective`): each row of an answer is compared with what comes next: a draft model with the teacher's
prediction (`distill`), a model that learns a domain with the text (`sft`).

Shape letters: B texts, T tokens, N = B x T real rows, A anchors, X = B x A chains, K masks of a chain, S slots of a
chain that are judged, C model width.
"""

from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from stridelm.models.sequential_head import SequentialHead, choose_along
from stridelm.train.batches import Batch
from stridelm.train.loss import RowLoss
from stridelm.train.settings import TrainSettings
from stridelm.train.students.passes import ChainPass, TextPass
from stridelm.train.students.student import OutputHead, computing_in, flat_places, read_texts, run

Inputs = tuple[np.ndarray, ...]
"""Arrays whose first axis is the texts of the batch: processes that share a step split them along it."""


class Learner(Protocol):
    """Any student."""

    network: Any
    """The network that its rows run through, including the output matrix."""
    has_own_layers: bool
    """Whether it has layers of its own, in float32, instead of the teacher's."""


class ChainLearner(Learner, Protocol):
    """A student that proposes several tokens from one position."""

    masks: int
    """Number of proposals beyond the anchor's own."""
    judges_anchor: bool
    """Whether its real rows are trained, too, so that its prediction at the anchor is part of the loss."""
    sequential: SequentialHead | None

    def slots(
        self, ids_BT: torch.Tensor, anchors_BA: torch.Tensor, texts: TextPass | None, hidden_NC: torch.Tensor | None
    ) -> torch.Tensor:
        """The final hidden states of all slots that are judged, X x S x C. `texts` and `hidden` are the results of the
        teacher's pass, if it ran."""
        ...


class RowLearner(Learner, Protocol):
    """A student that predicts one token at a time."""

    def rows(self, ids_BT: torch.Tensor) -> torch.Tensor:
        """The final hidden states of all real rows, N x C."""
        ...


class ChainObjective(nn.Module):
    """For students that propose several tokens from one position. The student is a submodule; the teacher, which is
    never trained, is not."""

    def __init__(self, teacher: Any, student: ChainLearner, settings: TrainSettings) -> None:
        super().__init__()
        self.student: Any = student
        self._teacher = [teacher]  # in a list, so that torch does not register it as a submodule
        self.settings = settings
        self.head = OutputHead(student.network)
        self.teacher_head = OutputHead(teacher)
        self.loss = RowLoss(self.head, self.teacher_head, settings.labels_used)
        self.first = 0 if student.judges_anchor else 1
        """The depth of the first slot of a chain that is judged; the anchor has depth 0."""

    @property
    def teacher(self) -> Any:
        return self._teacher[0]

    def inputs(self, batch: Batch, step: int) -> Inputs:
        """Ids, anchors, and each slot's weight in the loss."""
        return batch.ids_BT, batch.anchors_BA, self._weights(batch, step)

    def _weights(self, batch: Batch, step: int) -> np.ndarray:
        """B x A x S: each slot's weight in the loss, with a sum of one. Slots beyond the text's end have weight 0."""
        settings = self.settings
        depth_S = np.arange(self.first, settings.drafts + 1)
        weights_BAS = settings.depth_decay ** np.maximum(depth_S - 1.0, 0.0) * (
            batch.anchors_BA[..., None] + depth_S < batch.lengths_B[:, None, None] - 1
        )
        if settings.random_k:
            chance = np.random.default_rng([settings.seed, 2, step])
            weights_BAS = weights_BAS * (depth_S < chance.integers(2, settings.drafts + 2))
        return (weights_BAS / max(weights_BAS.sum(), 1e-9)).astype(np.float32)

    def forward(self, ids_BT: torch.Tensor, anchors_BA: torch.Tensor, weights_BAS: torch.Tensor) -> torch.Tensor:
        with _precision(self.student, self.teacher):
            return self._loss(ids_BT, anchors_BA, weights_BAS.flatten())

    def _loss(self, ids_BT: torch.Tensor, anchors_BA: torch.Tensor, weights_N: torch.Tensor) -> torch.Tensor:
        texts, hidden_NC = read_texts(self.teacher, ids_BT) if self._needs_teacher else (None, None)
        slots_XSC = self.student.slots(ids_BT, anchors_BA, texts, hidden_NC)
        depth_S = torch.arange(self.first, self.settings.drafts + 1, device=ids_BT.device)
        # A mask has the same position as the real row that it stands for: the teacher's prediction is read there.
        positions_BAS = anchors_BA[..., None] + depth_S
        width = ids_BT.shape[1]
        places_XS = flat_places(positions_BAS.clamp(max=width - 1), width).view(slots_XSC.shape[:2])
        before_XK = ids_BT.flatten()[places_XS[:, -self.settings.drafts :]]
        if self.settings.learns.needs_critic:
            assert texts is not None and hidden_NC is not None
            anchors_XC = hidden_NC[flat_places(anchors_BA, width)]
            before_XK = self._proposals(slots_XSC.detach(), anchors_XC)
            targets = self._critic_states(texts, anchors_BA, anchors_XC, before_XK)
        elif self._labels_are_text:
            targets = ids_BT.flatten()[flat_places((positions_BAS + 1).clamp(max=width - 1), width)]
        else:
            assert hidden_NC is not None
            targets = hidden_NC[places_XS.flatten()]
        judged, shares = self._judged(slots_XSC, before_XK)
        return self.loss(judged, shares, targets, weights_N)

    @property
    def _labels_are_text(self) -> bool:
        return self.settings.labels_used == "text"

    @property
    def _needs_teacher(self) -> bool:
        return not (self._labels_are_text and self.student.judges_anchor)

    def _judged(self, slots_XSC: torch.Tensor, before_XK: torch.Tensor) -> tuple[list[torch.Tensor], list[float]]:
        """The versions of the slots' hidden states in the loss, with the sequential head and without it, and the weight
        of each."""
        if self.student.sequential is None:
            return [slots_XSC.flatten(0, 1)], [1.0]
        before_XKC = self.teacher.get_input_embeddings()(before_XK)
        with computing_in(self.teacher.dtype, slots_XSC.device):
            moved_XSC = slots_XSC + self.student.sequential.along(slots_XSC, before_XKC)
        versions = [(moved_XSC, 1.0), (slots_XSC, self.settings.plain_weight)]
        kept = [(rows, share) for rows, share in versions if share]
        return [rows.flatten(0, 1) for rows, _ in kept], [share for _, share in kept]

    @torch.no_grad()
    def _proposals(self, slots_XSC: torch.Tensor, anchors_XC: torch.Tensor) -> torch.Tensor:
        """X x K: the student's own tokens at the positions of its masks. The anchor proposes the first of them. The
        last mask's proposal is not needed: its position is behind all masks."""
        masks_XKC = slots_XSC[:, -self.settings.drafts :]
        first_X = self.head.best(slots_XSC[:, 0]) if self.student.judges_anchor else self.teacher_head.best(anchors_XC)
        embed, head = self.teacher.get_input_embeddings(), self.head
        proposed_XK = choose_along(
            self.student.sequential, masks_XKC[:, :-1], first_X, embed, lambda _, output_XC: head.best(output_XC)
        )
        # An untrained student may propose the mask token, which may be outside the teacher's vocabulary.
        vocabulary = self.teacher.config.get_text_config().vocab_size
        return proposed_XK.clamp(max=vocabulary - 1)

    @torch.no_grad()
    def _critic_states(
        self, texts: TextPass, anchors_BA: torch.Tensor, anchors_XC: torch.Tensor, proposed_XK: torch.Tensor
    ) -> torch.Tensor:
        """The teacher's final hidden states at all slots when it reads the student's proposals behind the anchor."""
        chains = ChainPass(texts, anchors_BA, self.settings.drafts)
        hidden = run(self.teacher, chains, chains.positions.reshape(1, -1), input_ids=proposed_XK.reshape(1, -1)).view(
            *proposed_XK.shape, -1
        )
        if self.student.judges_anchor:
            hidden = torch.cat([anchors_XC[:, None], hidden], dim=1)
        return hidden.flatten(0, 1)


class RowObjective(nn.Module):
    """For students that predict one token at a time."""

    def __init__(self, teacher: Any, student: RowLearner, settings: TrainSettings) -> None:
        super().__init__()
        self.student: Any = student
        self._teacher = [teacher]
        self.labels = settings.labels_used
        self.loss = RowLoss(OutputHead(student.network), OutputHead(teacher), self.labels)

    def inputs(self, batch: Batch, step: int) -> Inputs:
        """Ids, and each row's weight in the loss: equal for all rows that predict a token of the answer, else 0."""
        places_T = np.arange(batch.ids_BT.shape[1])
        weights_BT = (places_T >= batch.prompts_B[:, None] - 1) & (places_T < batch.lengths_B[:, None] - 1)
        return batch.ids_BT, (weights_BT / weights_BT.sum()).astype(np.float32)

    def forward(self, ids_BT: torch.Tensor, weights_BT: torch.Tensor) -> torch.Tensor:
        with _precision(self.student, self._teacher[0]):
            if self.labels == "text":
                targets = ids_BT.roll(-1, dims=1).flatten()
            else:
                targets = read_texts(self._teacher[0], ids_BT)[1]
            return self.loss([self.student.rows(ids_BT)], [1.0], targets, weights_BT.flatten())


def _precision(student: Learner, teacher: Any) -> torch.autocast:
    """A student with its own layers holds them in float32 and computes in the teacher's precision (autocast). Other
    students run the teacher's layers as they are, without autocast."""
    return computing_in(teacher.dtype if student.has_own_layers else torch.float32, teacher.device)
