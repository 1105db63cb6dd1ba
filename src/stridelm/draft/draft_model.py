"""A second, smaller model with the same vocabulary writes drafts one by one; the target verifies them at once.

It continues as long as it is confident, for at most k tokens. Shape letters: V vocabulary, W wanted rows.
"""

import math
from dataclasses import dataclass, field

from stridelm.arrays import softmax
from stridelm.cache.kv_cache import BLOCK_SIZE, CacheFull, Table
from stridelm.contracts import Forward
from stridelm.layout import lay_out, make_block
from stridelm.sampling import scores_for
from stridelm.types import Array, Block, Commit, DraftTree, Output, Sequence
from stridelm.verify import agreement

MAX_ROWS = 512
"""Maximum number of prompt rows that the draft model reads in one step, over all sequences: long prompts are read in
parts."""
FLOOR = 0.25
"""Drafting goes on while the draft model gives the whole draft at least this probability. One more token saves a pass
of the target with at most that probability, and costs a pass of the draft model (published speed-ups imply 0.12 of the
target's: `bench/decoding/acceptance_and_speed.py`) and a row of the target, on a CPU about as much again."""


@dataclass(slots=True)
class _Draft:
    """What the draft model has read of one sequence, and what it adds to it in the current step."""

    table: Table
    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    """The draft model's confidence in each token that it added."""

    def begin(self, tokens: list[int]) -> None:
        self.tokens = list(tokens)
        self.scores = []

    @property
    def unread(self) -> list[int]:
        return self.tokens[self.table.length :]


class ModelDrafter:
    """Draws with the target's own noise, filters and penalties, so that it often agrees under sampling, too."""

    name = "draft"
    layers = ()
    reads_whole_texts = is_optional = reads_predictions = False

    def __init__(self, k: int, forward: Forward, context_length: int, vocabulary: int, target_vocabulary: int) -> None:
        self.k, self.floor, self.max_rows = k, FLOOR, MAX_ROWS
        self.forward = forward
        self.context_length = context_length
        self.vocabulary = vocabulary
        self.target_vocabulary = target_vocabulary
        self._drafts: dict[Sequence, _Draft] = {}

    def propose(self, sequences: list[Sequence]) -> list[DraftTree]:
        for sequence in sequences:
            if sequence not in self._drafts:
                self._drafts[sequence] = _Draft(self._table(sequence))
            self._drafts[sequence].begin(sequence.tokens)
        ready = self._catch_up([each for each in sequences if self._can_read(each) and self._has_room(each)])
        for count in range(self.k):
            self._extend([sequence for sequence in ready if self._may_draft(sequence, count)])
        drafts = [self._drafts[sequence] for sequence in sequences]
        return [
            DraftTree.chain(draft.tokens[len(sequence.tokens) :], self.name, draft.scores)
            for sequence, draft in zip(sequences, drafts, strict=True)
        ]

    def _table(self, sequence: Sequence) -> Table:
        """A table with room set aside for the whole text, in one run, if the cache has plenty."""
        cache, reserve = self.forward.cache, len(sequence.tokens) + sequence.room
        return cache.open(reserve if 2 * reserve <= cache.free_blocks * BLOCK_SIZE else 0)

    def _can_read(self, sequence: Sequence) -> bool:
        """Whether the unread tokens fit in the draft model's context and vocabulary."""
        draft = self._drafts[sequence]
        return len(draft.tokens) < self.context_length and max(draft.unread) < self.vocabulary

    def _has_room(self, sequence: Sequence) -> bool:
        """Whether the draft model's cache has room for the text and a draft. If not, nothing is drafted."""
        draft = self._drafts[sequence]
        try:
            self.forward.cache.grant(draft.table, len(draft.tokens) + min(self.k, sequence.room))
        except CacheFull:
            return False
        return True

    def _catch_up(self, sequences: list[Sequence]) -> list[Sequence]:
        """Read parts of long prompts, up to `max_rows` rows; returns the sequences whose unread tokens fit in one
        step."""
        ready: list[Sequence] = []
        parts: list[tuple[_Draft, int]] = []
        left = self.max_rows
        for sequence in sequences:
            draft = self._drafts[sequence]
            if len(draft.unread) <= left:
                ready.append(sequence)
            elif left:
                parts.append((draft, left))
            left -= min(left, len(draft.unread))
        if parts:
            blocks = [make_block(draft.table.length, draft.unread[:rows], reads_logits=False) for draft, rows in parts]
            self._read([draft for draft, _ in parts], blocks)
        return ready

    def _may_draft(self, sequence: Sequence, count: int) -> bool:
        """Not for the last token of an answer, which needs no draft, nor after the end of a text, a full context or an
        unlikely draft."""
        tokens, scores = self._drafts[sequence].tokens, self._drafts[sequence].scores
        return (
            len(scores) == count < sequence.room - 1
            and math.prod(scores) >= self.floor
            and len(tokens) < self.context_length
            and (count == 0 or (tokens[-1] not in sequence.eos_ids and tokens[-1] < self.vocabulary))
        )

    def _extend(self, sequences: list[Sequence]) -> None:
        """One more token for each."""
        if not sequences:
            return
        drafts = [self._drafts[sequence] for sequence in sequences]
        outputs = self._read(drafts, [make_block(draft.table.length, draft.unread) for draft in drafts])
        for sequence, draft, output in zip(sequences, drafts, outputs, strict=True):
            logits_V = output.logits_WV[0, : self.target_vocabulary]
            token, score = draw_and_confidence(logits_V, sequence, draft.tokens)
            draft.tokens.append(token)
            draft.scores.append(score)

    def _read(self, drafts: list[_Draft], blocks: list[Block]) -> list[Output]:
        outputs = self.forward(lay_out(blocks), [draft.table for draft in drafts])
        for draft, block in zip(drafts, blocks, strict=True):
            self.forward.cache.keep(draft.table, range(len(block)))
        return outputs

    def observe(
        self, sequences: list[Sequence], blocks: list[Block], outputs: list[Output], commits: list[Commit]
    ) -> None:
        """Drop rejected drafts from the draft model's cache."""
        for sequence in sequences:
            draft = self._drafts.get(sequence)
            if draft is not None:
                # The last token is always read again, to draw the next one: it may equal a draft that was never run.
                agreed = agreement(draft.tokens[: draft.table.length], sequence.tokens[:-1])
                self.forward.cache.truncate(draft.table, agreed)

    def release(self, sequence: Sequence) -> None:
        draft = self._drafts.pop(sequence, None)
        if draft is not None:
            self.forward.cache.free(draft.table)


def draw_and_confidence(logits_V: Array, sequence: Sequence, before: list[int]) -> tuple[int, float]:
    """The token that `sequence` draws from these logits, and how clearly it won: its share in a softmax of the scores
    that the draw compared, on the scale of the logits.

    If the target's logits were these plus Gumbel noise of their own, that share would be the probability that the
    target draws the same token. The token's own probability is a poor estimate of that: with shared noise, both draw an
    unlikely token, too. Without temperature the two are equal. If no token is left, any token with a confidence of 0.
    """
    scores_V = scores_for(sequence, logits_V, before)
    token = int(scores_V.argmax())
    if scores_V[token] == -math.inf:
        return token, 0.0
    return token, float(softmax(scores_V * (sequence.params.temperature or 1.0))[token])
