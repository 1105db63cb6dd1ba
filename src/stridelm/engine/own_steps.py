"""Serving by steps that a backend runs by itself: which sequences, at which stepper, with how many drafts.

A sequence that asks for nothing but what the stepper declares takes a place of one (`step_loop`); all others, and
prompts, take the host's steps. Whatever fails here leaves cache and sequences as they were, and the host runs the step.

The cache may take blocks back at any time (others need room, or a sequence makes room). So every placed text notes when
its blocks were last cut: what was launched before is dropped, and run again. It may still write into those blocks, but
a backend does things in the order in which it was told, so whoever has the blocks now writes later.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from stridelm.contracts import Forward, Stepper
from stridelm.decode.chain_length import ChainLength
from stridelm.engine.emitted import block_of, commit_of
from stridelm.engine.placed_text import Orders, TextLoop, place_texts
from stridelm.engine.step_kind import StepKind
from stridelm.engine.step_loop import StepLoop
from stridelm.model.kv_cache import BLOCK_SIZE, blocks_for
from stridelm.params import InputError
from stridelm.types import Block, Commit, Sequence

log = logging.getLogger(__name__)

_TILE = 7
"""Drafts that fill a tile of rows together with their masks."""
_DRAFTS = (2, 4, _TILE, 12)
_MAX_ROWS = 256
"""Of a step with drafts. An H200 with the built-in model and 16 users (144 rows) wrote 1.28 times as much with drafts,
with 32 (288 rows) no more than without: rows are paid by then, and the host has more to read."""
_AHEAD = 256
"""Tokens that blocks are set aside for at once: whenever a text gets new ones, the backend must be told."""
_SHARE = 4
"""At most this fraction of what is free, though: others would have to take it back."""
_MAX_REST = 1024
"""Steps that the host runs after failures in a row: one after the first, twice as many after each further one."""
_MAX_LOGGED = 32
"""Kinds of failures."""

_Key = tuple[int, int, frozenset[int]]
"""Of a stepper: drafts, places, tokens that end a text."""


@dataclass(slots=True)
class Outcome:
    """What became of a batch."""

    batch: list[Sequence] = field(default_factory=list)
    """Those that were served; in the cache their rows are a step to be kept."""
    blocks: list[Block] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    refused: list[tuple[Sequence, InputError]] = field(default_factory=list)
    """Those whose own logits or text allow no step at all."""
    failed: set[Sequence] = field(default_factory=set)
    """Those whose step the backend failed at."""
    host: list[Sequence] = field(default_factory=list)
    """Those whose step the host must run, in their order."""

    @property
    def done(self) -> set[Sequence]:
        """Those that the backend has had, served or not."""
        return {*self.batch, *(sequence for sequence, _ in self.refused), *self.failed}

    @property
    def count(self) -> int:
        """Of these."""
        return len(self.batch) + len(self.refused) + len(self.failed)


class OwnSteps:
    """One per engine."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self.failures = 0
        """Launches, collects and single texts that failed so far."""
        self._in_a_row = self._rest = 0
        self._logged: set[str] = set()
        self._loops: dict[_Key, TextLoop] = {}
        self._lengths: dict[tuple[int, int], ChainLength] = {}
        """By maximum number of drafts, and places."""
        self._kinds: dict[tuple[int, frozenset[int]], StepKind | None] = {}

    def warm_up(self, drafts: int, ends: frozenset[int]) -> None:
        """Measure the steps of one text with up to `drafts` drafts before anyone waits for them: what a backend runs
        for the first time is compiled and captured then."""
        if self.forward.stepper(0, 1, ends) is not None:
            self._seconds((0, 1, ends))
            self._length(_longest(drafts), 1, ends)

    def forget(self) -> None:
        """Free all places; what is in flight is dropped."""
        loops, self._loops = self._loops, {}
        for loop in loops.values():
            try:
                loop.forget()
            except Exception as error:
                self._note(error)

    def step(self, batch: list[Sequence]) -> Outcome:
        """A step of those sequences of a batch whose steps the backend can run, or what was in flight of it. Never
        raises: what fails is the host's to run."""
        outcome, own, failures = Outcome(), dict[Sequence, int](), self.failures
        if self._rest:
            self._rest -= 1
        else:
            try:
                own = {sequence: drafts for sequence in batch if (drafts := self._max_drafts(sequence)) is not None}
                self._step_all(own, outcome)
            except Exception as error:
                self._note(error)
                self.forget()
                outcome.failed |= own.keys() - outcome.done
            if self.failures > failures:
                self._rest = min(2**self._in_a_row, _MAX_REST)
                self._in_a_row += 1
            elif own:
                self._in_a_row = 0
        outcome.host = [sequence for sequence in batch if sequence not in own or sequence in outcome.failed]
        return outcome

    def _note(self, error: Exception) -> None:
        """Count a failure; each kind is logged once, for a step that fails always would fill the log."""
        self.failures += 1
        what = f"{type(error).__name__}: {error}"
        if what not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(what)
            log.error("a step of the backend's own failed, and the host runs it: %s", what, exc_info=error)

    def _max_drafts(self, sequence: Sequence) -> int | None:
        """As many as its policy allows; none where the cache is nearly full. None: the host must run its step."""
        allowed = sequence.policy.own_drafts
        if allowed is None or sequence.cached != len(sequence.tokens) - 1 or not self._handles(sequence):
            return None
        drafts = _longest(allowed)
        if self._has_room(sequence, drafts):
            return drafts
        return 0 if drafts and self._has_room(sequence, 0) else None

    def _handles(self, sequence: Sequence) -> bool:
        """Whether the backend runs steps by itself that obey all that the sequence asks for."""
        kind = self._kind(0, sequence.eos_ids)
        return kind is not None and kind.obeys(sequence)

    def _kind(self, drafts: int, ends: frozenset[int]) -> StepKind | None:
        """What is known of steps with `drafts` drafts; None where the backend runs none by itself."""
        key = (drafts, ends)
        if key not in self._kinds:
            stepper = self.forward.stepper(drafts, 1, ends)
            self._kinds[key] = None if stepper is None else StepKind.of(stepper)
        return self._kinds[key]

    def _rows(self, drafts: int, ends: frozenset[int]) -> int:
        kind = self._kind(drafts, ends)
        assert kind is not None
        return kind.rows

    def _has_room(self, sequence: Sequence, drafts: int) -> bool:
        """Whether the text has blocks for what two steps may write; they are set aside."""
        table, rows = sequence.table, self._rows(drafts, sequence.eos_ids)
        assert table is not None
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

    def _step_all(self, max_drafts: Mapping[Sequence, int], outcome: Outcome) -> None:
        """Stepper by stepper. Texts that move to another one first get what is in flight for them."""
        groups, orders = self._groups(max_drafts)
        going_to = {sequence: key for key, group in groups.items() for sequence in group}
        for key, loop in self._loops.items():
            if loop.in_flight and _is_left(key, loop, going_to):
                self._collect(loop, going_to.keys(), outcome)
        done = outcome.done
        for key, group in groups.items():
            if done.isdisjoint(group):  # or they take their places in the next step
                self._step(key, group, orders, outcome)

    def _groups(self, max_drafts: Mapping[Sequence, int]) -> tuple[dict[_Key, list[Sequence]], Orders]:
        """By the stepper that they are to have places at, and who ordered its drafts. Sequences that come to the same
        number of drafts share one."""
        by_most: defaultdict[tuple[int, frozenset[int]], list[Sequence]] = defaultdict(list)
        for sequence, drafts in max_drafts.items():
            by_most[drafts, sequence.eos_ids].append(sequence)
        by_drafts: defaultdict[tuple[int, frozenset[int]], list[Sequence]] = defaultdict(list)
        orders: dict[Sequence, ChainLength] = {}
        for (drafts, ends), group in by_most.items():
            length = self._length(drafts, _places(len(group)), ends)
            if all(len(sequence.tokens) <= sequence.prompt_length + 1 for sequence in group):
                length.begin_text()
            by_drafts[length.choose(), ends].extend(group)
            orders |= dict.fromkeys(group, length)
        return {(drafts, _places(len(group)), ends): group for (drafts, ends), group in by_drafts.items()}, orders

    def _step(self, key: _Key, sequences: list[Sequence], orders: Orders, outcome: Outcome) -> None:
        if key not in self._loops:
            self._loops[key] = StepLoop(self._stepper(key))
        loop, before = self._loops[key], outcome.count
        place_texts(loop, sequences)
        while outcome.count == before:  # what was launched for others gives nothing
            loop.launch(orders)
            self._collect(loop, orders.keys(), outcome)

    def _collect(self, loop: TextLoop, wanted: Collection[Sequence], outcome: Outcome) -> None:
        """The earliest step in flight, for those who are wanted and whose text is as it was. Of the others the backend
        knows more than the host will: their places are freed."""
        collected = loop.collect()
        for place, text, emitted in collected.texts:
            sequence = text.sequence
            if sequence not in wanted or not text.is_current:
                loop.end(place)
                continue
            try:
                commit, block = commit_of(sequence, emitted), block_of(sequence, emitted, loop.stepper.drafts)
                if emitted.drafts and commit.finish_reason is None:
                    collected.order[sequence].observe(len(emitted.drafts), len(emitted.tokens))
                self.forward.cache.begin_step(text.table, len(emitted.tokens))  # last: it leaves a trace
            except InputError as error:
                outcome.refused.append((sequence, error))
            except Exception as error:
                self._note(error)
                outcome.failed.add(sequence)
                loop.end(place)
            else:
                outcome.batch.append(sequence)
                outcome.blocks.append(block)
                outcome.commits.append(commit)
                text.length += len(emitted.tokens)

    def _length(self, drafts: int, places: int, ends: frozenset[int]) -> ChainLength:
        if (drafts, places) not in self._lengths:
            counts = sorted({count for count in (*_DRAFTS, drafts) if 0 < count <= drafts})
            fitting = [count for count in counts if self._rows(count, ends) * places <= _MAX_ROWS]
            seconds = {count: self._seconds((count, places, ends)) for count in (0, *fitting)} if fitting else {0: 1.0}
            self._lengths[drafts, places] = ChainLength(seconds)
        return self._lengths[drafts, places]

    def _seconds(self, key: _Key) -> float:
        """Measured while the stepper is idle: timing runs real steps, which overwrite its places."""
        if key in self._loops:
            self._loops[key].forget()
        return self._stepper(key).seconds

    def _stepper(self, key: _Key) -> Stepper:
        stepper = self.forward.stepper(*key)
        assert stepper is not None
        return stepper


def _is_left(key: _Key, loop: TextLoop, going_to: Mapping[Sequence, _Key]) -> bool:
    """Whether a text moves from here to another stepper."""
    return any(text is not None and going_to.get(text.sequence, key) != key for text in loop.texts)


@lru_cache
def _longest(drafts: int) -> int:
    """The most drafts that are tried where `drafts` are allowed: all of them, if they fit into a tile."""
    return drafts if drafts <= _TILE else max(count for count in _DRAFTS if count <= drafts)


def _places(count: int) -> int:
    """A power of two: a step is captured for each."""
    return 1 << (count - 1).bit_length()
