"""Several tokens a step for every place of `DenseTexts`, from masks: greedy decoders with masks where many texts are
written side by side.

A step runs P real rows for each place (what was written last, then what was drafted, then nothing) and, off the last
row that stands, a chain of masks. Two runs through the layers, where the serving engine has one: the masks of the only
row that matters cost less than masks at all of them, and say the same.

    verified      pending d1 d2 d3     verified in turn; the masks off the last that stands draft the next ones
    unverified    p1 p2 p3             all stand; what the masks off p3 say stands, too, if they are sure of it

Drafts are one chain, as `stridelm acceptance` walks it; the serving engine may grow a tree and take a little more.

Shape letters: B places, P real rows of a place, X = B x P, K masks of a chain, C model width, V vocabulary, S state of
the sequential head.
"""

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import torch

from stridelm.backends.common.cuda_graph import Graphed, HostCopy
from stridelm.backends.common.scorer import probability
from stridelm.backends.common.step_seconds import median_seconds
from stridelm.models.sequential_head import choose_along
from stridelm.stepper import Continuation, Emitted
from stridelm.train.dense_texts import DenseTexts
from stridelm.train.students.passes import ChainPass
from stridelm.train.students.student import CHUNK_LOGITS, MaskRows, OutputHead, Student


@dataclass(frozen=True, slots=True)
class Verified:
    """Drafts stand where the model agrees, or nearly so."""

    tolerance: float = 0.0
    """A draft stands if the model holds it at least 1 - tolerance times as likely as its own choice."""


@dataclass(frozen=True, slots=True)
class Unverified:
    """What masks say stands as long as they are sure."""

    threshold: float
    """The leading tokens that are at least this likely stand; 0 takes all."""

    def is_sure(self, probability: float) -> bool:
        return probability >= self.threshold


@dataclass(eq=False, slots=True)
class _Text:
    cached: int
    pending: list[int]
    """What was written last, and is not in the cache."""
    room: int
    """0 once the text has ended."""
    drafts: list[int] = field(default_factory=list)


class MaskStepper:
    """Keeps `stepper.Stepper`, but that an unverified step leaves all it emits pending: the cache has grown by what
    the step before emitted. Nobody else keeps books on `DenseTexts`.

    `Emitted.confidence` is the model's own probability of a token where one of its real rows says it. What an
    unverified step takes from masks no real row has judged: there it is the probability that the mask gave."""

    plans = False
    max_in_flight = 1  # the host puts the next step's rows together

    def __init__(
        self,
        texts: DenseTexts,
        student: Student | MaskRows,
        masks: int,
        rule: Verified | Unverified,
        ends: frozenset[int],
    ) -> None:
        """`masks`: of a chain, no more than the student was trained for."""
        assert 0 < masks <= student.masks
        self.texts, self.places, self.ends = texts, texts.places, ends
        self.student, self.drafts, self.rule = student, masks, rule
        self.rows = masks + 1
        # Greedy text is the same for every seed. A trace shows drafts as verified ones.
        self.obeys = frozenset({"max_tokens", "seed", "choice", "eos_ids"}) | (
            {"is_traced"} if isinstance(rule, Verified) else set()
        )
        self.head = OutputHead(texts.network)
        self.embedding: Any = texts.network.get_input_embeddings()
        self.places_B = torch.arange(self.places, device=texts.device)
        self._graphed = Graphed(self._step, texts.network, texts.device)
        self._texts: list[_Text | None] = [None] * self.places
        self._launched: tuple[list[_Text | None], HostCopy] | None = None

    @property
    def seconds(self) -> float:
        return median_seconds(self)

    def begin(self, place: int, text: Continuation) -> None:
        self.give_blocks(place, text.blocks)
        self._texts[place] = _Text(text.cached, [text.pending], text.room)

    def give_blocks(self, place: int, blocks: Items[int]) -> None:
        """A place has its stretch for good."""
        assert tuple(blocks) == (place,), "a place has its own stretch of the cache"

    def end(self, place: int) -> None:
        self._texts[place] = None

    @torch.inference_mode()
    def launch(self, waiting: Items[int] = ()) -> None:
        assert not waiting and self._launched is None
        ids: list[list[int]] = []
        counts: list[tuple[int, int, int]] = []
        for text in self._texts:
            known = [] if text is None else [*text.pending, *text.drafts]
            ids.append([*known, *[0] * (self.rows - len(known))])
            counts.append((0, 1, 0) if text is None else (text.cached, len(text.pending), len(text.drafts)))
        ids_BP, counts_B3 = (torch.tensor(values).to(self.texts.device) for values in (ids, counts))
        self._reach = self.texts.reach(max(start for start, _, _ in counts) + self.rows)
        self._launched = list(self._texts), HostCopy(self._graphed(self._reach, ids_BP, counts_B3))

    def collect(self) -> list[Emitted]:
        assert self._launched is not None
        texts, result = self._launched
        self._launched = None
        return [self._emit(text, values) for text, values in zip(texts, result.wait().tolist(), strict=True)]

    def forget(self) -> None:
        self._launched = None
        self._texts = [None] * self.places

    def _emit(self, text: _Text | None, values: list[float]) -> Emitted:
        """`values`: as `_step` returns them."""
        if text is None or not text.room:
            return Emitted((), ())
        accepted, drawn, *said = map(int, values[: 2 + self.drafts])
        sure, *likely = values[2 + self.drafts :]
        drafts = tuple(text.drafts)
        if isinstance(self.rule, Verified):
            tokens = self._standing([*drafts[:accepted], drawn], text)
            text.cached += len(tokens)
            text.pending, text.drafts = tokens[-1:], said[: max(0, text.room - 1)]
            confidence = (*likely[self.drafts :][:accepted], sure)
        else:
            confidence = (sure, *likely)
            sure_of = sum(1 for _ in takewhile(self.rule.is_sure, confidence))
            # The first token is the model's own, and stands whatever its probability is.
            tokens = self._standing([drawn, *said][: max(1, sure_of)], text)
            text.cached += len(text.pending)
            text.pending = tokens
        return Emitted(tuple(tokens), confidence[: len(tokens)], drafts)

    def _standing(self, tokens: list[int], text: _Text) -> list[int]:
        """Nothing counts behind an end of text, or when the room is used up."""
        tokens = tokens[: text.room]
        text.room -= len(tokens)
        for count, token in enumerate(tokens, 1):
            if token in self.ends:
                text.room = 0
                return tokens[:count]
        return tokens

    def _step(self, ids_BP: torch.Tensor, counts_B3: torch.Tensor) -> torch.Tensor:
        """`counts`: of each place's tokens in the cache, pending ones and drafts. Returns, for each place, how many
        drafts stand, the token drawn behind them and those that the masks say; then how likely the drawn one is, those
        of the masks, and the drafts."""
        starts_B, pending_B, drafts_B = counts_B3.unbind(dim=1)
        hidden_BPC = self.texts.run(ids_BP, starts_B, self._reach)
        accepted_B, likely_BK = torch.zeros_like(starts_B), None
        if isinstance(self.rule, Verified):
            accepted_B, likely_BK = self._verify(hidden_BPC[:, :-1], ids_BP[:, 1:], drafts_B, self.rule.tolerance)
        anchors_B = pending_B - 1 + accepted_B
        logits_BV = self.head(hidden_BPC[self.places_B, anchors_B])
        drawn_B = logits_BV.argmax(dim=-1)
        said_BK, sure_BK = self._read_masks(starts_B + anchors_B, drawn_B)
        parts = [accepted_B[:, None], drawn_B[:, None], said_BK, probability(logits_BV, drawn_B)[:, None], sure_BK]
        return torch.cat([part.double() for part in (*parts, likely_BK) if part is not None], dim=1)

    def _verify(
        self, hidden_BKC: torch.Tensor, proposed_BK: torch.Tensor, drafts_B: torch.Tensor, tolerance: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """How many of each place's drafts stand, in turn, and how likely the model holds each."""
        allowed = math.log1p(-tolerance)
        part = max(1, CHUNK_LOGITS // len(self.head.linear.weight))
        stands: list[torch.Tensor] = []
        likely: list[torch.Tensor] = []
        for hidden_XC, proposed_X in zip(
            hidden_BKC.flatten(0, 1).split(part), proposed_BK.flatten().split(part), strict=True
        ):
            logits_XV = self.head(hidden_XC)
            best_X, chosen_X = logits_XV.max(dim=-1)
            stands_X = chosen_X == proposed_X
            if tolerance:
                stands_X |= logits_XV.gather(1, proposed_X[:, None])[:, 0] >= best_X + allowed
            stands.append(stands_X)
            likely.append(probability(logits_XV, proposed_X))
        stands_BK, likely_BK = (torch.cat(parts).view(proposed_BK.shape) for parts in (stands, likely))
        is_draft_BK = torch.arange(self.drafts, device=self.texts.device) < drafts_B[:, None]
        return (stands_BK & is_draft_BK).long().cumprod(dim=1).sum(dim=1), likely_BK

    def _read_masks(self, anchors_B: torch.Tensor, drawn_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the masks off the anchors say once they know what was drawn there, by depth, and how likely it is."""
        chains = ChainPass(self.texts.as_pass(self._reach), anchors_B[:, None], self.student.masks)
        outputs_BKC = self.student.outputs(chains)[:, : self.drafts]
        likely: list[torch.Tensor] = []

        def choose(_: int, output_BC: torch.Tensor) -> torch.Tensor:
            logits_BV = self.head(output_BC)
            token_B = logits_BV.argmax(dim=-1)
            likely.append(probability(logits_BV, token_B))
            return token_B

        said_BK = choose_along(self.student.sequential, outputs_BKC.float(), drawn_B, self.embedding, choose)
        return said_BK[:, 1:], torch.stack(likely, dim=1)
