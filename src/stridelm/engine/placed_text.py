"""Sequences at the places of a stepper, and what the backend knows of each."""

from collections.abc import Mapping
from dataclasses import dataclass

from stridelm.cache.kv_cache import Table
from stridelm.decode.chain_length import TextOdds
from stridelm.engine.device_loop import DeviceLoop
from stridelm.stepper import PLAIN_PLAN, Continuation
from stridelm.types import Sequence


@dataclass(eq=False, slots=True)
class PlacedText:
    """A sequence at a place of a stepper, and what the backend knows of it."""

    sequence: Sequence
    table: Table
    cuts: int
    """The table's number of cuts when the backend was told of its blocks."""
    blocks: int
    """Blocks of the table that the backend knows of."""
    length: int
    """Length of the text including all collected steps."""

    @property
    def room(self) -> int:
        return self.sequence.room

    @property
    def is_current(self) -> bool:
        """Whether the backend's text and blocks still match the sequence."""
        return self.is_in_step and self.cuts == self.table.cuts

    @property
    def is_in_step(self) -> bool:
        """Whether the backend's text still matches the sequence; its blocks may have been cut."""
        return self.table is self.sequence.table and self.length == len(self.sequence.tokens)


Orders = Mapping[Sequence, TextOdds | None]
"""For each sequence, what learns how many of the step's drafts were accepted; None if the stepper plans."""
TextLoop = DeviceLoop[PlacedText, Orders]


def place_texts(loop: TextLoop, sequences: list[Sequence]) -> list[int]:
    """Give places to these sequences. One whose text in the backend is current keeps its place. If the stepper plans,
    texts of others wait at theirs, as far as there are enough: what is known of them would be lost, and a client that
    reads slowly, or the other lane of a race, is back after a few steps. Returns the places that wait."""
    wanted, waiting = set(sequences), list[int]()
    for place, text in enumerate(loop.texts):
        if text is None:
            continue
        # A cut between two steps took unused blocks only: it matters to steps that were in flight.
        if text.sequence in wanted and (text.is_current or (text.is_in_step and not loop.in_flight)):
            wanted.remove(text.sequence)
            if len(text.table.blocks) > text.blocks or text.cuts != text.table.cuts:
                loop.stepper.give_blocks(place, text.table.blocks)
                text.blocks, text.cuts = len(text.table.blocks), text.table.cuts
        elif loop.stepper.plans and text.is_in_step and text.sequence.finish_reason is None:
            waiting.append(place)
        else:
            loop.end(place)
    while len(loop.free_places()) < len(wanted):
        loop.end(waiting.pop())
    if wanted:
        free = iter(loop.free_places())
        for sequence in sequences:
            if sequence in wanted:
                _begin(loop, next(free), sequence)
    return waiting


def _begin(loop: TextLoop, place: int, sequence: Sequence) -> None:
    table = sequence.table
    assert table is not None
    continuation = Continuation(
        cached=sequence.cached,
        pending=sequence.tokens[-1],
        room=sequence.room,
        blocks=table.blocks,
        params=sequence.params,
        seed=sequence.seed,
        choice=sequence.choice,
        tokens=sequence.tokens,
        prompt_length=sequence.prompt_length,
        prediction=sequence.prediction,
        plan=sequence.policy.own_plan or PLAIN_PLAN,
        alternatives=sequence.optional_alternatives,
    )
    text = PlacedText(sequence, table, table.cuts, len(table.blocks), len(sequence.tokens))
    loop.begin(place, text, continuation)
    sequence.policy.release(sequence)  # the host's drafters do not see the backend's steps: their state gets stale
