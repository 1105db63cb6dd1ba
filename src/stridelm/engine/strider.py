"""Lets the device run steps by itself where it can, and stays a step behind it.

Sequences that need nothing of the host but to be read (without penalties, a grammar, alternatives or a trace) sit down
at the places of a stepper. While the host turns one step's tokens into text, the next one runs already:

    device   step 1 | step 2 | step 3 | ...
    host              read 1 | read 2 | ...

Who comes takes a free place and who goes leaves one: the others do not notice, as long as the stepper has a fitting
number of places. What is in flight is remembered with those who sat there when it was launched.

The cache may take blocks back at any time (others need room, or a sequence makes room). So every seat notes when its
blocks were last cut: what was launched before is forgotten, and run again. It may still write into those blocks, but
the device does things in the order in which it was told, so whoever has the blocks now writes later.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from stridelm.contracts import Emitted, Forward, Stepper
from stridelm.decode.autoregressive import ending, finite
from stridelm.decode.chain_length import ChainLength
from stridelm.engine.seats import Round
from stridelm.layout import make_block
from stridelm.model.kv_cache import BLOCK_SIZE, blocks_for
from stridelm.params import InputError
from stridelm.types import MASKS, NO_DRAFT, ROOT, Block, Commit, DraftTree, Sequence

_TILE = 7
"""Drafts that are, with their masks, the rows of a tile."""
_DRAFTS = (2, 4, _TILE, 12)
_MOST_ROWS = 256
"""Of a step with drafts. An H200 with the built-in model and 16 users (144 rows) wrote 1.28 times as much with drafts,
with 32 (288 rows) no more than without: rows are paid by then, and the host has more to read."""
_AHEAD = 256
"""Tokens that blocks are set aside for at once: whenever a text gets new ones, the device must be told."""
_SHARE = 4
"""At most the fourth part of what is free, though: others would have to take it back."""

_Key = tuple[int, int, frozenset[int]]
"""Of a stepper: drafts, places, what ends a text."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step gave those who took part in it."""

    batch: list[Sequence] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    failed: list[tuple[Sequence, InputError]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.batch and not self.failed


class Strider:
    """One per engine."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self._rounds: dict[_Key, Round] = {}
        self._lengths: dict[tuple[int, int], ChainLength] = {}
        """By the most drafts that the sequences may have, and places."""
        self._asked: dict[tuple[int, frozenset[int]], ChainLength] = {}
        """By the most drafts and what ends a text: the one that chose for such sequences, and learns from them."""
        self._known_rows: dict[tuple[int, frozenset[int]], int | None] = {}

    def warm_up(self, drafts: int, ends: frozenset[int]) -> None:
        """Measure the steps of one text with up to so many drafts before somebody waits for it: what a device runs for
        the first time is compiled and captured then."""
        if self.forward.stepper(0, 1, ends) is not None:
            self._seconds((0, 1, ends))
            self._length(_longest(drafts), 1, ends)

    def split(self, batch: list[Sequence]) -> tuple[dict[Sequence, int], list[Sequence]]:
        """Those whose next step the device can run by itself, each with the most drafts that there is room for, and the
        others."""
        own: dict[Sequence, int] = {}
        others: list[Sequence] = []
        for sequence in batch:
            drafts = self._most_drafts(sequence)
            if drafts is None:
                others.append(sequence)
            else:
                own[sequence] = drafts
        return own, others

    def _most_drafts(self, sequence: Sequence) -> int | None:
        """As many as its policy allows; none where the cache is nearly full. None: the host must run its step."""
        allowed = sequence.policy.device_drafts
        if allowed is None or not self._can_take(sequence):
            return None
        drafts = _longest(allowed)
        if self._has_room(sequence, drafts):
            return drafts
        return 0 if drafts and self._has_room(sequence, 0) else None

    def _can_take(self, sequence: Sequence) -> bool:
        return (
            sequence.cached == len(sequence.tokens) - 1
            and sequence.grammar is None
            and not sequence.params.changes_logits
            and not sequence.alternatives
            and not sequence.is_traced
            and self._rows(0, sequence.eos_ids) is not None
        )

    def _rows(self, drafts: int, ends: frozenset[int]) -> int | None:
        """Of a place, in a step with so many drafts; None where the device runs none by itself."""
        key = (drafts, ends)
        if key not in self._known_rows:
            stepper = self.forward.stepper(drafts, 1, ends)
            self._known_rows[key] = None if stepper is None else stepper.rows
        return self._known_rows[key]

    def _has_room(self, sequence: Sequence, drafts: int) -> bool:
        """Whether the text has blocks for what two steps may write; they are set aside."""
        table, rows = sequence.table, self._rows(drafts, sequence.eos_ids)
        assert table is not None and rows is not None
        # What is granted but not set aside would be cut off behind every step.
        set_aside = table.reserved * BLOCK_SIZE if table.reserved == len(table.blocks) else 0
        # The second step begins behind what the first one gives, and writes all of its rows.
        if sequence.cached + drafts + 1 + rows <= set_aside:
            return True
        cache, room = self.forward.cache, sequence.room
        needed = sequence.cached + min(drafts + 1, room) + rows
        if needed <= set_aside:
            return True
        free = cache.free_blocks - max(0, blocks_for(needed) - len(table.blocks))
        if free < 0:
            return False
        cache.reserve(table, needed + min(_AHEAD, room, free * BLOCK_SIZE // _SHARE))
        return True

    def forget(self) -> None:
        """All get up: what was in flight is not wanted any more."""
        rounds, self._rounds = self._rounds, {}
        for current in rounds.values():
            current.clear()

    def step(self, most_drafts: dict[Sequence, int]) -> Iterator[Outcome]:
        """One step of each of these, or what was in flight of it; stepper by stepper, so that what one has given is
        part of its texts before the next is asked."""
        groups = self._groups(most_drafts)
        going_to = {sequence: key for key, group in groups.items() for sequence in group}
        served: set[Sequence] = set()
        for key, current in self._rounds.items():
            if current.launched and _is_left(key, current, going_to):
                outcome = self._collect(current, set(going_to))
                served.update(outcome.batch, (sequence for sequence, _ in outcome.failed))
                yield outcome
        for key, group in groups.items():
            if served.isdisjoint(group):  # or they sit down the next time
                yield self._step(key, group)

    def _groups(self, most_drafts: dict[Sequence, int]) -> dict[_Key, list[Sequence]]:
        """By the stepper that they are to sit at. Whoever comes to the same number of drafts shares one."""
        by_most: defaultdict[tuple[int, frozenset[int]], list[Sequence]] = defaultdict(list)
        for sequence, drafts in most_drafts.items():
            by_most[drafts, sequence.eos_ids].append(sequence)
        by_drafts: defaultdict[tuple[int, frozenset[int]], list[Sequence]] = defaultdict(list)
        for (drafts, ends), group in by_most.items():
            length = self._asked[drafts, ends] = self._length(drafts, _places(len(group)), ends)
            if all(len(sequence.tokens) <= sequence.prompt_length + 1 for sequence in group):
                length.begin_text()
            by_drafts[length.choose(), ends].extend(group)
        return {(drafts, _places(len(group)), ends): group for (drafts, ends), group in by_drafts.items()}

    def _step(self, key: _Key, sequences: list[Sequence]) -> Outcome:
        if key not in self._rounds:
            self._rounds[key] = Round(self._stepper(key))
        current = self._rounds[key]
        current.seat(sequences)
        outcome = Outcome()
        while outcome.is_empty:  # what was launched for others, or before a cut, gives nothing
            current.launch()
            outcome = self._collect(current, set(sequences))
        return outcome

    def _collect(self, current: Round, wanted: set[Sequence]) -> Outcome:
        outcome, drafts = Outcome(), current.stepper.drafts
        for seat, emitted in current.collect(wanted):
            sequence, count = seat.sequence, len(emitted.tokens)
            assert count, "a text that goes on got nothing"
            try:
                commit = _commit(sequence, emitted)
            except InputError as error:
                outcome.failed.append((sequence, error))
                continue
            self.forward.cache.begin_step(seat.table, count)
            outcome.batch.append(sequence)
            outcome.blocks.append(_shape(drafts, seat.has_drafts))
            outcome.commits.append(commit)
            if seat.has_drafts and commit.finish_reason is None:
                assert sequence.policy.device_drafts is not None
                self._asked[_longest(sequence.policy.device_drafts), sequence.eos_ids].observe(drafts, count)
            seat.length += count
            seat.has_drafts = drafts > 0
        return outcome

    def _length(self, drafts: int, places: int, ends: frozenset[int]) -> ChainLength:
        if (drafts, places) not in self._lengths:
            rows = {count: self._rows(count, ends) for count in (*_DRAFTS, drafts) if 0 < count <= drafts}
            fitting = [count for count, own in rows.items() if own is not None and own * places <= _MOST_ROWS]
            seconds = {count: self._seconds((count, places, ends)) for count in (0, *fitting)} if fitting else {0: 1.0}
            self._lengths[drafts, places] = ChainLength(seconds)
        return self._lengths[drafts, places]

    def _seconds(self, key: _Key) -> float:
        """Measured when nobody sits there: it runs steps, which write where the places' texts lie."""
        if key in self._rounds:
            self._rounds[key].clear()
        return self._stepper(key).seconds

    def _stepper(self, key: _Key) -> Stepper:
        stepper = self.forward.stepper(*key)
        assert stepper is not None
        return stepper


def _is_left(key: _Key, current: Round, going_to: dict[Sequence, _Key]) -> bool:
    """Whether somebody moves from here to another stepper."""
    return any(seat is not None and going_to.get(seat.sequence, key) != key for seat in current.seats)


@lru_cache
def _shape(drafts: int, has_drafts: bool) -> Block:
    """What was run, for whoever counts rows and drafts: which tokens they held only the device knows. A step that holds
    no drafts yet has masks off its pending row."""
    tree = DraftTree.chain([0] * drafts, MASKS) if has_drafts else NO_DRAFT
    return make_block(0, [0], tree, anchors=range(ROOT, len(tree)) if drafts else (), masks=drafts)


def _commit(sequence: Sequence, emitted: Emitted) -> Commit:
    kept, sources = _accepted(len(emitted.tokens))
    return Commit(kept, emitted.tokens, sources, finite(emitted.confidence), ending(sequence, emitted.tokens))


@lru_cache
def _accepted(count: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The rows that stand if so many tokens are emitted, and who proposed these."""
    return tuple(range(count)), (*(MASKS,) * (count - 1), "model")


@lru_cache
def _longest(drafts: int) -> int:
    """The most drafts that are tried where so many are allowed. Few enough for a tile, it is these."""
    return drafts if drafts <= _TILE else max(count for count in _DRAFTS if count <= drafts)


def _places(count: int) -> int:
    """A power of two: a step is captured for each."""
    return 1 << (count - 1).bit_length()
