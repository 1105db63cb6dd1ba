"""A second, smaller model of the same vocabulary writes k candidates one by one; the target verifies them at once."""

from dataclasses import dataclass, field

from stridelm.layout import lay_out, make_block
from stridelm.model.forward import TorchForward
from stridelm.model.kv_cache import Table
from stridelm.sampling import drawer
from stridelm.types import Commit, DraftTree, Sequence

_CHUNK = 512
"""Rows of a prompt that the draft model reads in one forward."""


@dataclass(slots=True)
class _Draft:
    """What the draft model has read of one sequence, and what it adds to it in the step at hand."""

    table: Table
    tokens: list[int] = field(default_factory=list)


class ModelDrafter:
    """Draws with the target's own noise, filters and penalties, so that under sampling, too, it agrees often."""

    name = "draft"

    def __init__(self, k: int, forward: TorchForward, context_length: int, vocabulary: int) -> None:
        self.k = k
        self.forward = forward
        self.context_length = context_length
        self.vocabulary = vocabulary
        self._drafts: dict[Sequence, _Draft] = {}

    def propose(self, sequences: list[Sequence]) -> list[DraftTree]:
        for sequence in sequences:
            draft = self._drafts.get(sequence)
            if draft is None:
                draft = self._drafts[sequence] = _Draft(
                    self.forward.cache.open(reserve=len(sequence.tokens) + sequence.room)
                )
            draft.tokens = list(sequence.tokens)
        for count in range(self.k):
            self._extend([sequence for sequence in sequences if self._may_draft(sequence, count)])
        return [
            DraftTree.chain(self._drafts[sequence].tokens[len(sequence.tokens) :], self.name) for sequence in sequences
        ]

    def _may_draft(self, sequence: Sequence, count: int) -> bool:
        """The last token of an answer needs no draft, and an ended text or a full context cannot go on."""
        tokens = self._drafts[sequence].tokens
        return (
            len(tokens) == len(sequence.tokens) + count
            and count < sequence.room - 1
            and len(tokens) < self.context_length
            and (count == 0 or tokens[-1] not in sequence.eos_ids)
        )

    def _extend(self, sequences: list[Sequence]) -> None:
        """One more token for each, after catching up with the text that the draft model has not read."""
        unread = sequences
        while unread:
            drafts = [self._drafts[sequence] for sequence in unread]
            blocks = []
            for draft in drafts:
                pending = draft.tokens[draft.table.length : draft.table.length + _CHUNK]
                is_last = draft.table.length + len(pending) == len(draft.tokens)
                blocks.append(make_block(draft.table.length, pending, reads_logits=is_last))
            logits = self.forward(lay_out(blocks), [draft.table for draft in drafts])
            still_unread = []
            for sequence, draft, block, logits_WV in zip(unread, drafts, blocks, logits, strict=True):
                self.forward.cache.keep(draft.table, range(len(block)))
                if not block.wanted:
                    still_unread.append(sequence)
                    continue
                draw = drawer(logits_WV[:, : self.vocabulary], sequence)
                draft.tokens.append(draw(0, draft.tokens))
            unread = still_unread

    def observe(self, sequences: list[Sequence], commits: list[Commit]) -> None:
        """Forget what was read of rejected drafts."""
        for sequence in sequences:
            draft = self._drafts.get(sequence)
            if draft is not None:
                agreed = _agreement(draft.tokens[: draft.table.length], sequence.tokens)
                self.forward.cache.truncate(draft.table, agreed)

    def release(self, sequence: Sequence) -> None:
        draft = self._drafts.pop(sequence, None)
        if draft is not None:
            self.forward.cache.free(draft.table)


def _agreement(read: list[int], tokens: list[int]) -> int:
    """How long the two are equal. They differ, if at all, near the end: look there first."""
    length = min(len(read), len(tokens))
    while read[:length] != tokens[:length]:
        length -= 1
    return length
