"""An assistant writes drafts one by one over the target's own keys and values; the target verifies them at once.

It continues as long as it is confident, for at most k tokens. Shape letters: X texts, C the target's width,
V vocabulary.
"""

import math
from dataclasses import dataclass, field

from stridelm import arrays
from stridelm.contracts import Assistant
from stridelm.draft.draft_model import draw_and_confidence
from stridelm.draft.final_states import FinalStates
from stridelm.types import NO_DRAFT, Array, DraftTree, Sequence

_FLOOR = 0.25
"""Drafting goes on while the assistant gives the whole draft at least this probability, as with a draft model: its few
layers cost less, but each draft also costs a row of the target."""


@dataclass(slots=True)
class _Draft:
    """One text and what the assistant adds to it in the current step."""

    sequence: Sequence
    tokens: list[int]
    hidden_C: Array
    """The assistant's input together with the last of these tokens."""
    scores: list[float] = field(default_factory=list)

    @property
    def may_go_on(self) -> bool:
        """Not for the last token of an answer, which needs no draft, nor after the end of a text or an unlikely
        draft."""
        return (
            len(self.scores) < self.sequence.room - 1
            and math.prod(self.scores) >= _FLOOR
            and not (self.scores and self.tokens[-1] in self.sequence.eos_ids)
        )


class AssistantDrafter(FinalStates):
    """Draws with the target's own noise, filters and penalties, so that it often agrees under sampling, too."""

    name = "assistant"

    def __init__(self, assistant: Assistant, *, layers: int, k: int) -> None:
        """`layers`: the target's number of layers."""
        super().__init__(layers)
        self.assistant, self.k = assistant, k

    def propose(self, sequences: list[Sequence]) -> list[DraftTree]:
        drafts = {
            sequence: _Draft(sequence, list(sequence.tokens), self._hidden_C[sequence])
            for sequence in sequences
            if sequence in self._hidden_C
        }
        for _ in range(self.k):
            self._extend([draft for draft in drafts.values() if draft.may_go_on])
        return [
            DraftTree.chain(drafts[sequence].tokens[len(sequence.tokens) :], self.name, drafts[sequence].scores)
            if sequence in drafts
            else NO_DRAFT
            for sequence in sequences
        ]

    def _extend(self, drafts: list[_Draft]) -> None:
        """One more token for each."""
        if not drafts:
            return
        tables = [draft.sequence.table for draft in drafts if draft.sequence.table is not None]
        assert len(tables) == len(drafts), "the target has read these texts: they have their places in its cache"
        hidden_XC = arrays.stack([draft.hidden_C for draft in drafts])
        logits_XV, hidden_XC = self.assistant([draft.tokens[-1] for draft in drafts], hidden_XC, tables)
        for draft, logits_V, hidden_C in zip(drafts, logits_XV, hidden_XC, strict=True):
            token, score = draw_and_confidence(logits_V, draft.sequence, draft.tokens)
            draft.tokens.append(token)
            draft.scores.append(score)
            draft.hidden_C = hidden_C
