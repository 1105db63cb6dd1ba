"""Serving with steps that a backend runs by itself: chooses the sequences, their stepper and the number of drafts.

A sequence that sets only what the stepper obeys takes one of its places (`device_loop`); all other sequences, and
prompts, take the host's steps. A failure here leaves cache and sequences as they were, and the host runs the step.

The cache may take blocks back at any time (because other sequences need room, or a sequence is preempted). So every
placed text records its table's count of such cuts: results of steps launched before a cut are dropped, and computed
again. Such a step may still write into blocks that it has lost, but a backend runs steps in the order of their launch,
so the text that owns the blocks now overwrites them later.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from stridelm.cache.kv_cache import BLOCK_SIZE, CacheFull, blocks_for
from stridelm.contracts import Forward, Policy
from stridelm.decode.chain_length import TextOdds
from stridelm.decode.draft_prior import draft_priors
from stridelm.engine.device_loop import DeviceLoop
from stridelm.engine.emitted import block_of, commit_of
from stridelm.engine.placed_text import Orders, TextLoop, place_texts
from stridelm.engine.step_kind import StepKind
from stridelm.engine.step_shapes import Key, StepShapes, longest
from stridelm.params import InputError
from stridelm.types import Block, Commit, Sequence

log = logging.getLogger(__name__)

_AHEAD = 256
"""Number of tokens that blocks are reserved for at once: the backend must be updated when a text gets new blocks."""
_SHARE = 4
"""At most 1/_SHARE of the free blocks are reserved: other sequences would have to take them back."""
_MAX_REST = 1024
"""Maximum number of steps that a stepper is paused for while the host runs them: one step after the first failure,
twice as many after each further failure in a row."""
_PLANNED_PLACES = 16
"""Minimum number of places of a stepper that plans."""
_MAX_LOGGED = 32
"""Maximum number of different failures that are logged."""


@dataclass(slots=True)
class _Rest:
    """How long a stepper is paused after failures."""

    failures: int = 0
    """Failures in a row."""
    steps: int = 0
    """Steps that the host still runs in its place."""

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
    """The result of a step for a batch."""

    batch: list[Sequence] = field(default_factory=list)
    """Sequences that got tokens. Their rows are in the cache as a step that is not kept yet."""
    blocks: list[Block] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    refused: list[tuple[Sequence, InputError]] = field(default_factory=list)
    """Sequences that cannot go on at all, because of their logits or text."""
    failed: set[Sequence] = field(default_factory=set)
    """Sequences whose step failed in the backend, or whose stepper is paused."""
    host: list[Sequence] = field(default_factory=list)
    """Sequences whose step the host must run, in the order of the batch."""

    @property
    def done(self) -> set[Sequence]:
        """Sequences that were handled: served, refused or failed."""
        return {*self.batch, *(sequence for sequence, _ in self.refused), *self.failed}

    @property
    def count(self) -> int:
        """Number of these."""
        return len(self.batch) + len(self.refused) + len(self.failed)


class OwnSteps:
    """Runs the backend's own steps for an engine: one object per engine."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self.failures = 0
        """Number of failures so far, of any kind: launches, collects, results of single texts."""
        self._shapes = StepShapes(forward, note=self._note, free=self._forget)
        self._loops: dict[Key, TextLoop] = {}
        self._rests: defaultdict[Key, _Rest] = defaultdict(_Rest)
        self._logged: set[str] = set()
        self._odds: WeakKeyDictionary[Sequence, TextOdds] = WeakKeyDictionary()
        """Of texts, unless their stepper plans."""
        self._max_places: dict[frozenset[int], int] = {}
        """Of steppers that plan, by the tokens that end a text."""

    @property
    def are_planned(self) -> bool:
        """Whether the backend plans each step by itself."""
        return bool(self._max_places)

    def warm_up(self, drafts: int, ends: frozenset[int]) -> None:
        """Measure the steps of one text with up to `drafts` drafts before the first request, because a backend
        compiles and captures a step when it first runs it."""
        kind = self._shapes.kind(0, ends)
        if kind is not None and not kind.plans:
            self._shapes.seconds((0, 1, ends))
            self._shapes.length(longest(drafts), 1, ends)

    def forget(self) -> None:
        """Free all places and drop the steps in flight."""
        for key in list(self._loops):
            self._forget(key)

    def _forget(self, key: Key) -> None:
        try:
            if (loop := self._loops.pop(key, None)) is not None:
                loop.forget()
        except Exception as error:
            self._note(error)

    def step(self, batch: list[Sequence]) -> Outcome:
        """One step for those sequences of the batch whose steps the backend can run; the step may have been launched
        earlier. Never raises: sequences whose step fails are left to the host."""
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
        """Count a failure. Each kind is logged once: a step that always fails would fill the log."""
        self.failures += 1
        what = f"{type(error).__name__}: {error}"
        if what not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(what)
            log.error("a step of the backend's own failed, and the host runs it: %s", what, exc_info=error)

    def _max_drafts(self, sequence: Sequence) -> int | None:
        """Maximum number of drafts for a sequence: what its policy allows, or 0 if the cache is nearly full or the
        stepper plans. None if the host must run its step, as it always does for an answer's first token."""
        policy, length = sequence.policy, len(sequence.tokens)
        if sequence.cached != length - 1 or length == sequence.prompt_length:
            return None
        plain = self._shapes.kind(0, sequence.eos_ids)
        allowed = None if plain is None else _allowed(policy, plain)
        if plain is None or allowed is None or not plain.obeys(sequence):
            return None
        if drafts := longest(allowed):
            kind = self._shapes.kind(drafts, sequence.eos_ids)
            if kind is not None and self._has_room(sequence, drafts, kind):
                return drafts
        return 0 if self._has_room(sequence, 0, plain) else None

    def plans_answer(self, sequence: Sequence) -> bool:
        """Whether the backend will plan this answer's steps once its prompt is read."""
        kind = self._shapes.kind(0, sequence.eos_ids)
        return (
            len(sequence.tokens) == sequence.prompt_length
            and kind is not None
            and kind.plans
            and _allowed(sequence.policy, kind) is not None
            and kind.obeys(sequence)
        )

    def _has_room(self, sequence: Sequence, drafts: int, kind: StepKind) -> bool:
        """Whether the text has blocks for what the steps in flight may write. Reserves them if it has too few."""
        table, room = sequence.table, sequence.room
        assert table is not None
        # Blocks that are granted but not reserved would be cut off after every step.
        set_aside = table.reserved * BLOCK_SIZE if table.reserved == len(table.blocks) else 0
        # The last step in flight begins after the tokens of the steps before it, and writes all of its rows.
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
        """One step per stepper. Texts that move to another stepper first get the results in flight for them."""
        groups, orders = self._groups(max_drafts)
        going_to = {sequence: key for key, group in groups.items() for sequence in group}
        for key, loop in list(self._loops.items()):
            try:
                if loop.in_flight and _has_moving_text(key, loop, going_to):
                    self._collect(loop, going_to.keys(), outcome)
                elif key not in groups and not any(text is not None and text.is_current for text in loop.texts):
                    self._forget(key)  # otherwise it would keep references to sequences that have ended
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
        """Groups the sequences by the stepper that they shall use: those with the same number of drafts share one. Also
        returns, for each sequence, what learns from its drafts."""
        by_max_drafts: defaultdict[tuple[int, frozenset[int]], list[Sequence]] = defaultdict(list)
        for sequence, drafts in max_drafts.items():
            by_max_drafts[drafts, sequence.eos_ids].append(sequence)
        by_drafts: defaultdict[tuple[int, frozenset[int]], list[Sequence]] = defaultdict(list)
        orders: dict[Sequence, TextOdds | None] = {}
        for (drafts, ends), group in by_max_drafts.items():
            if self._plans(ends):
                by_drafts[drafts, ends].extend(group)
                orders |= dict.fromkeys(group)
                continue
            length = self._shapes.length(drafts, _places(len(group)), ends)
            if not any(sequence in self._odds for sequence in group):
                length.begin_texts()
            odds = {sequence: self._odds.get(sequence) or _odds_of(sequence) for sequence in group}
            by_drafts[length.choose(odds.values()), ends].extend(group)
            orders |= odds
            self._odds.update(odds)
        groups = {
            (drafts, self._planned_places(len(group), ends) if self._plans(ends) else _places(len(group)), ends): group
            for (drafts, ends), group in by_drafts.items()
        }
        return groups, orders

    def _planned_places(self, count: int, ends: frozenset[int]) -> int:
        """Never fewer than before: free places cost nothing, and texts should not move when others come or go."""
        places = max(_places(count), self._max_places.get(ends, _PLANNED_PLACES))
        self._max_places[ends] = places
        return places

    def _plans(self, ends: frozenset[int]) -> bool:
        kind = self._shapes.kind(0, ends)
        return kind is not None and kind.plans

    def _step(self, key: Key, sequences: list[Sequence], orders: Orders, outcome: Outcome) -> None:
        if key not in self._loops:
            self._loops[key] = DeviceLoop(self._shapes.stepper(key))
        loop, before = self._loops[key], outcome.count
        waiting = place_texts(loop, sequences)
        while outcome.count == before:  # steps launched before these texts took their places give nothing for them
            loop.launch(orders, waiting)
            self._collect(loop, orders.keys(), outcome)

    def _collect(self, loop: TextLoop, wanted: Collection[Sequence], outcome: Outcome) -> None:
        """Collect the earliest step in flight, for the wanted sequences whose text has not changed since. The places of
        all others are freed: their text in the backend is ahead of the host's, which drops these tokens."""
        collected = loop.collect()
        for place, text, emitted in collected.texts:
            sequence = text.sequence
            if sequence not in wanted or not text.is_current:
                loop.end(place)
                continue
            try:
                commit, block = commit_of(sequence, emitted), block_of(sequence, emitted, loop.stepper.drafts)
                odds = collected.order[sequence]
                if odds is not None and commit.finish_reason is None:
                    odds.observe(len(emitted.drafts), len(emitted.tokens))
                # Last, because it changes the cache.
                self.forward.cache.begin_step(text.table, len(emitted.tokens))
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


def _has_moving_text(key: Key, loop: TextLoop, going_to: Mapping[Sequence, Key]) -> bool:
    """Whether a text moves from here to another stepper."""
    return any(text is not None and going_to.get(text.sequence, key) != key for text in loop.texts)


def _allowed(policy: Policy, kind: StepKind) -> int | None:
    """Maximum number of drafts per step that the policy allows a backend; None if the host must plan."""
    if not kind.plans:
        return policy.own_drafts
    return None if policy.own_plan is None else 0


def _odds_of(sequence: Sequence) -> TextOdds:
    plan = sequence.policy.own_plan
    greedy, sampled = (plan and plan.priors) or draft_priors()
    return TextOdds(sampled if sequence.params.temperature else greedy)


def _places(count: int) -> int:
    """Rounded up to a power of two, because a step is captured for each number of places."""
    return 1 << (count - 1).bit_length()
