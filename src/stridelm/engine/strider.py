"""Lets the device run steps by itself where it can, and stays a step behind it.

Sequences that need nothing of the host but to be read (without penalties, a grammar, alternatives or a trace) sit down
at the places of a stepper. While the host turns one step's tokens into text, the next one runs already. What is in
flight when somebody comes or goes is collected first.

The cache may take blocks back at any time (others need room, or a sequence makes room). So every seat notes when its
blocks were last cut: a step that was launched before is forgotten, and run again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from stridelm.contracts import Emitted, Forward, Stepper
from stridelm.decode.autoregressive import ending, finite
from stridelm.decode.chain_length import ChainLength
from stridelm.layout import make_block
from stridelm.model.kv_cache import BLOCK_SIZE, CacheFull, Table
from stridelm.types import MASKS, Block, Commit, DraftTree, Sequence

_PLACES = (1, 2, 4, 8, 16, 32, 64)
_DRAFTS = (2, 4, 8, 12)
_AHEAD = 256
"""Tokens that blocks are set aside for at once: whenever a text gets new ones, the device must be told."""

Decided = tuple[list[Sequence], list[Block], list[Commit]]


@dataclass(slots=True)
class _Seat:
    sequence: Sequence
    table: Table
    cuts: int
    """Of the table, when the sequence sat down."""
    blocks: int
    """So many of the table's blocks the device knows of."""
    length: int
    """Of the text, when all steps that were collected are part of it."""

    def holds(self, sequence: Sequence) -> bool:
        """Whether the device's text is this one, as it is."""
        return (
            self.sequence is sequence
            and self.table is sequence.table
            and self.cuts == self.table.cuts
            and self.length == len(sequence.tokens)
        )


@dataclass(slots=True)
class _Round:
    """Sequences that are written together, and the stepper that they sit at."""

    stepper: Stepper
    seats: list[_Seat] = field(default_factory=list)


class Strider:
    """One per engine."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self._rounds: dict[tuple[int, frozenset[int]], _Round] = {}
        """By the most drafts that the sequences' policies allow, and what ends their texts."""
        self._lengths: dict[tuple[int, int], ChainLength] = {}

    def split(self, batch: list[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
        """Those whose next step the device can run by itself, with room for it, and the others."""
        own = [sequence for sequence in batch if self._can_take(sequence) and self._has_room(sequence)]
        return own, [sequence for sequence in batch if sequence not in own]

    def _can_take(self, sequence: Sequence) -> bool:
        drafts = sequence.policy.device_drafts
        return (
            drafts is not None
            and sequence.grammar is None
            and not sequence.params.changes_logits
            and not sequence.alternatives
            and not sequence.is_traced
            and sequence.cached == len(sequence.tokens) - 1
            and self.forward.stepper(0, 1, sequence.eos_ids) is not None
        )

    def _has_room(self, sequence: Sequence) -> bool:
        """Whether the text has blocks for what two steps may write; they are set aside."""
        table, drafts = sequence.table, sequence.policy.device_drafts
        assert table is not None and drafts is not None
        needed = len(sequence.tokens) + 2 * (drafts + 1) + self._stepper(drafts, 1, sequence.eos_ids).rows
        if table.reserved * BLOCK_SIZE >= needed and len(table.blocks) >= table.reserved:
            return True
        for tokens in (needed + _AHEAD, needed):
            try:
                self.forward.cache.reserve(table, tokens)
                return True
            except CacheFull:
                continue
        return False

    def forget(self) -> None:
        """All get up: what was in flight is not wanted any more."""
        for current in self._rounds.values():
            while current.stepper.in_flight:
                current.stepper.collect()
        self._rounds = {}

    def step(self, sequences: list[Sequence]) -> list[Decided]:
        """One step of these, or what was in flight of them: who took part, what was run, what came of it."""
        groups: dict[tuple[int, frozenset[int]], list[Sequence]] = {}
        for sequence in sequences:
            assert sequence.policy.device_drafts is not None
            groups.setdefault((sequence.policy.device_drafts, sequence.eos_ids), []).append(sequence)
        return [self._step(key, group) for key, group in groups.items()]

    def _step(self, key: tuple[int, frozenset[int]], sequences: list[Sequence]) -> Decided:
        drafts, ends = key
        length = self._length(drafts, _fit(len(sequences), _PLACES), ends)
        chosen = length.choose()
        stepper = self._stepper(chosen, _fit(len(sequences), _PLACES), ends)
        current = self._rounds.get(key)
        stays = current is not None and current.stepper is stepper and _is_as_seated(current.seats, sequences)
        if current is not None and not stays:
            while current.stepper.in_flight:
                decided = self._collect(current, length, sequences)
                if decided[0]:
                    return decided
            current = None
        if current is None:
            current = self._rounds[key] = self._seat(stepper, sequences)
        else:
            _give_blocks(current)
        if not stepper.in_flight:
            stepper.launch()
        stepper.launch()
        return self._collect(current, length, sequences)

    def _seat(self, stepper: Stepper, sequences: list[Sequence]) -> _Round:
        seats: list[_Seat] = []
        for place, sequence in enumerate(sequences):
            table = sequence.table
            assert table is not None
            stepper.begin(
                place,
                cached=sequence.cached,
                pending=sequence.tokens[-1],
                room=sequence.room,
                blocks=table.blocks,
                params=sequence.params,
                seed=sequence.seed,
                choice=sequence.choice,
            )
            seats.append(_Seat(sequence, table, table.cuts, len(table.blocks), len(sequence.tokens)))
        for place in range(len(sequences), stepper.places):
            stepper.end(place)
        return _Round(stepper, seats)

    def _collect(self, current: _Round, length: ChainLength, sequences: Iterable[Sequence]) -> Decided:
        """The earliest step in flight, for those who are still there and whose text is as it was."""
        wanted = set(sequences)
        batch: list[Sequence] = []
        blocks: list[Block] = []
        commits: list[Commit] = []
        for seat, emitted in zip(current.seats, current.stepper.collect(), strict=False):
            sequence = seat.sequence
            if sequence not in wanted or not seat.holds(sequence) or not emitted.tokens:
                continue
            length.observe(current.stepper.drafts, len(emitted.tokens))
            self.forward.cache.append(seat.table, len(emitted.tokens))
            batch.append(sequence)
            blocks.append(_block(sequence, current.stepper))
            commits.append(_commit(sequence, emitted))
            seat.length += len(emitted.tokens)
        return batch, blocks, commits

    def _length(self, drafts: int, places: int, ends: frozenset[int]) -> ChainLength:
        if (drafts, places) not in self._lengths:
            options = {0, drafts, *(count for count in _DRAFTS if count < drafts)} if drafts else set()
            seconds = {count: self._stepper(count, places, ends).seconds for count in options}
            self._lengths[drafts, places] = ChainLength(seconds or {0: 1.0})
        return self._lengths[drafts, places]

    def _stepper(self, drafts: int, places: int, ends: frozenset[int]) -> Stepper:
        stepper = self.forward.stepper(drafts, places, ends)
        assert stepper is not None
        return stepper


def _is_as_seated(seats: list[_Seat], sequences: list[Sequence]) -> bool:
    return len(seats) == len(sequences) and all(
        seat.holds(sequence) for seat, sequence in zip(seats, sequences, strict=True)
    )


def _give_blocks(current: _Round) -> None:
    for place, seat in enumerate(current.seats):
        if len(seat.table.blocks) > seat.blocks:
            seat.blocks = len(seat.table.blocks)
            current.stepper.give_blocks(place, seat.table.blocks)


def _block(sequence: Sequence, stepper: Stepper) -> Block:
    """What was run, for whoever counts rows and drafts; which tokens were drafted only the device knows."""
    tree = DraftTree.chain([0] * stepper.drafts, MASKS)
    anchors = range(-1, stepper.drafts) if stepper.drafts else ()
    return make_block(sequence.cached, sequence.tokens[-1:], tree, anchors=anchors, masks=stepper.drafts)


def _commit(sequence: Sequence, emitted: Emitted) -> Commit:
    count = len(emitted.tokens)
    return Commit(
        kept=tuple(range(count)),
        tokens=emitted.tokens,
        sources=(*(MASKS,) * (count - 1), "model"),
        confidence=finite(emitted.confidence),
        finish_reason=ending(sequence, emitted.tokens),
    )


def _fit(count: int, sizes: tuple[int, ...]) -> int:
    return next((size for size in sizes if size >= count), count)
