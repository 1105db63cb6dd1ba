"""What proposes drafts and can be measured: chains of masks, prediction heads, draft models.

A reader reads texts that are known, and then says of any anchors in them which drafts from there would be right.

Shape letters: B texts, T tokens of a text, F forms of drafting, K drafts of a chain, C model width.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from stridelm.train.chain_scorer import Chains, ChainScorer, Noise, chain_hits, tree_hits
from stridelm.train.students.passes import ChainPass
from stridelm.train.students.student import OutputHead, computing_in, flat_places, read_texts

Judge = Callable[[torch.Tensor], torch.Tensor]
"""Anchors (B x F) -> whether the text's own token is drafted at each depth from there (B x F x K), if those before it
are: drafts behind a wrong one are not checked."""
Form = int | None
"""How a step drafts: a tree, by the number of its rows, the newest token included; None for a chain."""
CHAIN: tuple[Form, ...] = (None,)


class Reader(Protocol):
    """Anything that proposes tokens and can be measured."""

    drafts: int
    """K: number of proposals along one path from an anchor."""
    forms: tuple[Form, ...]
    """F: each is walked by itself, through the same passes."""
    device: torch.device

    def __call__(self, ids_BT: torch.Tensor, noise: Noise | None = None) -> Judge:
        """Read the texts; returns a function that judges the drafts from anchors in them. `noise`: what the texts were
        drawn with, and so are drafts; None for greedy texts."""
        ...


def right_tokens(ids_BT: torch.Tensor, anchors_B1: torch.Tensor, drafts: int) -> torch.Tensor:
    """The tokens that chains off these anchors are to propose, B x K: the one at depth d off position a is at
    a + d + 2."""
    return ids_BT.gather(1, anchors_B1 + torch.arange(2, drafts + 2, device=ids_BT.device))


class _ChainReader:
    """Drafts from the outputs of chains."""

    def __init__(self, scorer: ChainScorer, drafts: int, forms: tuple[Form, ...], ends: frozenset[int]) -> None:
        self.scorer, self.drafts, self.forms = scorer, drafts, forms
        self.device: torch.device = scorer.head.linear.weight.device
        self.ends = torch.tensor(sorted(ends), dtype=torch.int64, device=self.device)

    def read(self, ids_BT: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        """Read the texts; returns anchors (B x F) -> the outputs of the chains off them (B x F x K x C)."""
        raise NotImplementedError

    def __call__(self, ids_BT: torch.Tensor, noise: Noise | None = None) -> Judge:
        outputs_of = self.read(ids_BT)

        def judge(anchors_BF: torch.Tensor) -> torch.Tensor:
            outputs_BFKC = outputs_of(anchors_BF)
            hits = [
                self._hits(form, Chains.off(ids_BT, anchors_BF[:, place], outputs_BFKC[:, place], noise))
                for place, form in enumerate(self.forms)
            ]
            return torch.stack(hits, dim=1)

        return judge

    def _hits(self, form: Form, chains: Chains) -> torch.Tensor:
        return chain_hits(self.scorer, chains) if form is None else tree_hits(self.scorer, chains, form - 1, self.ends)


class MaskReader(_ChainReader):
    """Chains of masks."""

    def __init__(
        self,
        teacher: Any,
        student: Any,
        *,
        with_sequential: bool = True,
        forms: tuple[Form, ...] = CHAIN,
        ends: frozenset[int] = frozenset(),
    ) -> None:
        """`student` is a Student or a FullStudent. The text is read by the student if its real rows are trained,
        otherwise by the teacher. `ends`: tokens that end a text, for trees."""
        scorer = ChainScorer(student.network, student.sequential if with_sequential else None)
        super().__init__(scorer, student.drafts, forms, ends)
        self.reads = student.network if student.judges_anchor else teacher
        self.student = student

    def read(self, ids_BT: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        texts, _ = read_texts(self.reads, ids_BT)

        def outputs_of(anchors_BF: torch.Tensor) -> torch.Tensor:
            outputs_XKC = self.student.outputs(ChainPass(texts, anchors_BF, self.student.masks))
            return outputs_XKC.unflatten(0, anchors_BF.shape)

        return outputs_of


class HeadsReader(_ChainReader):
    """Prediction heads on the anchor's final hidden state."""

    def __init__(
        self, teacher: Any, heads: Any, *, forms: tuple[Form, ...] = CHAIN, ends: frozenset[int] = frozenset()
    ) -> None:
        super().__init__(ChainScorer(teacher, None), heads.k - 1, forms, ends)
        self.teacher, self.heads = teacher, heads

    def read(self, ids_BT: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        _, hidden_NC = read_texts(self.teacher, ids_BT)

        def outputs_of(anchors_BF: torch.Tensor) -> torch.Tensor:
            anchors_XC = hidden_NC[flat_places(anchors_BF, ids_BT.shape[1])]
            return self.heads(anchors_XC.float()).unflatten(0, anchors_BF.shape)

        return outputs_of


class ModelReader:
    """A draft model, which continues from the newest token. Measured on greedy texts."""

    forms: tuple[Form, ...] = CHAIN

    def __init__(self, network: Any, drafts: int) -> None:
        self.network, self.drafts = network, drafts
        self.device = network.device
        self.head = OutputHead(network)

    def __call__(self, ids_BT: torch.Tensor, noise: Noise | None = None) -> Judge:
        assert noise is None, "a draft model's draws are not simulated"
        dtype = self.head.linear.weight.dtype  # the target's; layers that are trained are float32
        with computing_in(dtype, self.device):
            _, hidden_NC = read_texts(self.network, ids_BT)
        best_BT = self.head.best(hidden_NC).view_as(ids_BT)

        def judge(anchors_B1: torch.Tensor) -> torch.Tensor:
            drafts_BK = best_BT.gather(1, anchors_B1 + torch.arange(1, self.drafts + 1, device=self.device))
            return (drafts_BK == right_tokens(ids_BT, anchors_B1, self.drafts))[:, None]

        return judge
