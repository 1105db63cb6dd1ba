"""Serving by steps that a backend runs by itself: which sequences, at which stepper, with how many drafts.

A sequence that asks for nothing but what the stepper declares takes a place of one (`device_loop`); all others, and
prompts, take the host's steps. Whatever fails here leaves cache and sequences as they were, and the host runs the step.

The cache may take blocks back at any time (others need room, or a sequence makes room). So every placed text notes when
its blocks were last cut: what was launched before is dropped, and run again. It may still write into those blocks, but
a backend does things in the order in which it was told, so the text that has the blocks now writes later.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from stridelm.cache.kv_cache import BLOCK_SIZE, CacheFull, blocks_for
from stridelm.contracts import Forward
from stridelm.decode.chain_length import ChainLength
from stridelm.engine.device_loop import DeviceLoop
from stridelm.engine.emitted import block_of, commit_of
from stridelm.engine.placed_text import Orders, TextLoop, place_texts
from stridelm.engine.step_kind import StepKind
from stridelm.engine.step_shapes import Key, StepShapes, longest
from stridelm.params import InputError
from stridelm.types import Block, Commit, Sequence

log = logging.getLogger(__name__)

_AHEAD = 256
"""Tokens that blocks are set aside for at once: whenever a text gets new ones, the backend must be told."""
_SHARE = 4
"""At most this fraction of what is free, though: others would have to take it back."""
_MAX_REST = 1024
"""Steps that the host runs after failures of a stepper in a row: one after the first, twice as many after each."""
_MAX_LOGGED = 32
"""Kinds of failures."""


@dataclass(slots=True)
class _Rest:
    """A stepper that has failed lately."""

    failures: int = 0
    """In a row."""
    steps: int = 0
    """That the host still runs in its place."""

    def begin(self) -> None:
        self.steps = min(2**self.failures, _MAX_REST)
        self.failures += 1

    def goes_on(self) -> bool:
        """Asked before every step."""
        is_resting = self.steps > 0
        self.steps -= is_resting
        return is_resting


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
    """Those whose step the backend failed at, or rests from."""
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
        """Launches, collects, single texts and whatever else failed so far."""
        self._shapes = StepShapes(forward, note=self._note, free=self._forget)
        self._loops: dict[Key, TextLoop] = {}
        self._rests: defaultdict[Key, _Rest] = defaultdict(_Rest)
        self._logged: set[str] = set()

    def warm_up(self, drafts: int, ends: frozenset[int]) -> None:
        """Measure the steps of one text with up to `drafts` drafts before anyone waits for them: what a backend runs
        for the first time is compiled and captured then."""
        if self._shapes.kind(0, ends) is not None:
            self._shapes.seconds((0, 1, ends))
            self._shapes.length(longest(drafts), 1, ends)

    def forget(self) -> None:
        """Free all places; what is in flight is dropped."""
        for key in list(self._loops):
            self._forget(key)

    def _forget(self, key: Key) -> None:
        try:
            if (loop := self._loops.pop(key, None)) is not None:
                loop.forget()
        except Exception as error:
            self._note(error)

    def step(self, batch: list[Sequence]) -> Outcome:
        """A step of those sequences of a batch whose steps the backend can run, or what was in flight of it. Never
        raises: what fails is the host's to run."""
        outcome, own = Outcome(), dict[Sequence, int]()
        try:
            own = {sequence: drafts for sequence in batch if (drafts := self._max_drafts(sequence)) is not None}
            if own:
                self._step_all(own, outcome)
        except Exception as error:
            self._note(error)
            self.forget()
            outcome.failed |= own.keys() - outcome.done
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
        """As many as its policy allows; none where the cache is nearly full. None: the host must run its step, as it
        always does for an answer's first token."""
        allowed, length = sequence.policy.own_drafts, len(sequence.tokens)
        if allowed is None or sequence.cached != length - 1 or length == sequence.prompt_length:
            return None
        plain = self._shapes.kind(0, sequence.eos_ids)
        if plain is None or not plain.obeys(sequence):
            return None
        if drafts := longest(allowed):
            kind = self._shapes.kind(drafts, sequence.eos_ids)
            if kind is not None and self._has_room(sequence, drafts, kind):
                return drafts
        return 0 if self._has_room(sequence, 0, plain) else None

    def _has_room(self, sequence: Sequence, drafts: int, kind: StepKind) -> bool:
        """Whether the text has blocks for what the steps in flight may write; they are set aside."""
        table, room = sequence.table, sequence.room
        assert table is not None
        # What is granted but not set aside would be cut off behind every step.
        set_aside = table.reserved * BLOCK_SIZE if table.reserved == len(table.blocks) else 0
        # The last step in flight begins behind what those before it give, and writes all of its rows.
        needed = sequence.cached + min((kind.max_in_flight - 1) * (drafts + 1), room) + kind.rows
        if needed <= set_aside:
            return True
        cache = self.forward.cache
        free = cache.free_blocks - max(0, blocks_for(needed) - len(table.blocks))
        if free < 0:
            return False
        cache.reserve(table, needed + min(_AHEAD, room, free * BLOCK_SIZE // _SHARE))
        return True

    def _step_all(self, max_drafts: Mapping[Sequence, int], outcome: Outcome) -> None:
        """Stepper by stepper. Texts that move to another one first get what is in flight for them."""
        groups, orders = self._groups(max_drafts)
        going_to = {sequence: key for key, group in groups.items() for sequence in group}
        for key, loop in list(self._loops.items()):
            try:
                if loop.in_flight and _is_left(key, loop, going_to):
                    self._collect(loop, going_to.keys(), outcome)
                elif key not in groups and not any(text is not None and text.is_current for text in loop.texts):
                    self._forget(key)  # or it would hold on to sequences that have ended
            except Exception as error:
                self._fail(key, error)
        done = outcome.done
        for key, group in groups.items():
            if not done.isdisjoint(group):
                continue  # they take their places in the next step
            if self._rests[key].goes_on():
                outcome.failed.update(group)
                continue
            try:
                self._step(key, group, orders, outcome)
                self._rests[key].failures = 0
            except Exception as error:
                self._fail(key, error)
                outcome.failed |= set(group) - outcome.done

    def _fail(self, key: Key, error: Exception) -> None:
        self._note(error)
        self._forget(key)
        self._rests[key].begin()

    def _groups(self, max_drafts: Mapping[Sequence, int]) -> tuple[dict[Key, list[Sequence]], Orders]:
        """By the stepper that they are to have places at, and who ordered its drafts. Sequences that come to the same
        number of drafts share one."""
        by_most: defaultdict[tuple[int, frozenset[int]], list[Sequence]] = defaultdict(list)
        for sequence, drafts in max_drafts.items():
            by_most[drafts, sequence.eos_ids].append(sequence)
        by_drafts: defaultdict[tuple[int, frozenset[int]], list[Sequence]] = defaultdict(list)
        orders: dict[Sequence, ChainLength] = {}
        for (drafts, ends), group in by_most.items():
            length = self._shapes.length(drafts, _places(len(group)), ends)
            if all(len(sequence.tokens) <= sequence.prompt_length + 1 for sequence in group):
                length.begin_text()
            by_drafts[length.choose(), ends].extend(group)
            orders |= dict.fromkeys(group, length)
        return {(drafts, _places(len(group)), ends): group for (drafts, ends), group in by_drafts.items()}, orders

    def _step(self, key: Key, sequences: list[Sequence], orders: Orders, outcome: Outcome) -> None:
        if key not in self._loops:
            self._loops[key] = DeviceLoop(self._shapes.stepper(key))
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
            except Exception as error:
                if isinstance(error, InputError) and not isinstance(error, CacheFull):
                    outcome.refused.append((sequence, error))
                    continue
                self._note(error)
                outcome.failed.add(sequence)
                loop.end(place)
            else:
                outcome.batch.append(sequence)
                outcome.blocks.append(block)
                outcome.commits.append(commit)
                text.length += len(emitted.tokens)


def _is_left(key: Key, loop: TextLoop, going_to: Mapping[Sequence, Key]) -> bool:
    """Whether a text moves from here to another stepper."""
    return any(text is not None and going_to.get(text.sequence, key) != key for text in loop.texts)


def _places(count: int) -> int:
    """A power of two: a step is captured for each."""
    return 1 << (count - 1).bit_length()
