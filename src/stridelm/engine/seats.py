"""A stepper and who sits at its places: see `strider`."""

from collections import deque
from dataclasses import dataclass

from stridelm.contracts import Continuation, Emitted, Stepper
from stridelm.model.kv_cache import Table
from stridelm.types import Sequence


@dataclass(eq=False, slots=True)
class Seat:
    sequence: Sequence
    table: Table
    cuts: int
    """Of the table, when the sequence sat down."""
    blocks: int
    """So many of the table's blocks the device knows of."""
    length: int
    """Of the text, when all steps that were collected are part of it."""
    has_drafts: bool = False
    """Whether the next step to be collected had any: the first after sitting down has none."""

    @property
    def holds(self) -> bool:
        """Whether the device's text is the sequence's, as it is."""
        return (
            self.table is self.sequence.table
            and self.cuts == self.table.cuts
            and self.length == len(self.sequence.tokens)
        )


class Round:
    """A stepper and who sits at it."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self.seats: list[Seat | None] = [None] * stepper.places
        self.launched: deque[list[Seat | None]] = deque()
        """Of every step in flight, who sat where."""
        self.clear()

    def clear(self) -> None:
        """All get up, and what is in flight is not wanted any more."""
        while self.stepper.in_flight:
            self.stepper.collect()
        self.launched.clear()
        for place in range(self.stepper.places):
            self._leave(place)

    def _leave(self, place: int) -> None:
        self.stepper.end(place)
        self.seats[place] = None

    def seat(self, sequences: list[Sequence]) -> None:
        """These and nobody else, each where it sits already if the device's text is its own."""
        wanted = set(sequences)
        for place, seat in enumerate(self.seats):
            if seat is None:
                continue
            if seat.sequence in wanted and seat.holds:
                wanted.remove(seat.sequence)
                if len(seat.table.blocks) > seat.blocks:
                    seat.blocks = len(seat.table.blocks)
                    self.stepper.give_blocks(place, seat.table.blocks)
            else:
                self._leave(place)
        if wanted:
            free = (place for place, seat in enumerate(self.seats) if seat is None)
            for sequence in sequences:
                if sequence in wanted:
                    self._begin(next(free), sequence)

    def _begin(self, place: int, sequence: Sequence) -> None:
        table = sequence.table
        assert table is not None
        text = Continuation(
            cached=sequence.cached,
            pending=sequence.tokens[-1],
            room=sequence.room,
            blocks=table.blocks,
            params=sequence.params,
            seed=sequence.seed,
            choice=sequence.choice,
        )
        self.stepper.begin(place, text)
        self.seats[place] = Seat(sequence, table, table.cuts, len(table.blocks), len(sequence.tokens))

    def launch(self) -> None:
        """Keep the device busy, as long as somebody has more to write than what is in flight gives at least."""
        while self.stepper.in_flight < self.stepper.most_in_flight and any(
            seat is not None and seat.sequence.room > self.stepper.in_flight for seat in self.seats
        ):
            self.stepper.launch()
            self.launched.append(list(self.seats))

    def collect(self, wanted: set[Sequence]) -> list[tuple[Seat, Emitted]]:
        """The earliest step in flight, for those who still sit there and whose text is as it was. Of the others the
        device knows more than the host will: they get up."""
        taken: list[tuple[Seat, Emitted]] = []
        launched, results = self.launched.popleft(), self.stepper.collect()
        for place, (seat, sits, emitted) in enumerate(zip(launched, self.seats, results, strict=True)):
            if seat is None or seat is not sits:
                continue
            if seat.sequence in wanted and seat.holds:
                taken.append((seat, emitted))
            else:
                self._leave(place)
        return taken
