"""Sequences at the places of a stepper, as the backend knows them."""

from collections.abc import Mapping
from dataclasses import dataclass

from stridelm.cache.kv_cache import Table
from stridelm.contracts import Continuation
from stridelm.decode.chain_length import ChainLength
from stridelm.engine.device_loop import DeviceLoop
from stridelm.types import Sequence


@dataclass(eq=False, slots=True)
class PlacedText:
    """A sequence at a place of a stepper, as the backend knows it."""

    sequence: Sequence
    table: Table
    cuts: int
    """Of the table, when the text took its place."""
    blocks: int
    """Blocks of the table that the backend knows of."""
    length: int
    """Of the text, once the steps that were collected are part of it."""

    @property
    def room(self) -> int:
        return self.sequence.room

    @property
    def is_current(self) -> bool:
        """Whether the backend's text is the sequence's, as it is."""
        return (
            self.table is self.sequence.table
            and self.cuts == self.table.cuts
            and self.length == len(self.sequence.tokens)
        )


Orders = Mapping[Sequence, ChainLength]
"""Who ordered a step's drafts for which sequence, and is told what came of them."""
TextLoop = DeviceLoop[PlacedText, Orders]


def place_texts(loop: TextLoop, sequences: list[Sequence]) -> None:
    """Let these and nobody else have places, each its own if the backend's text is its own."""
    wanted = set(sequences)
    for place, text in enumerate(loop.texts):
        if text is None:
            continue
        if text.sequence in wanted and text.is_current:
            wanted.remove(text.sequence)
            if len(text.table.blocks) > text.blocks:
                loop.stepper.give_blocks(place, text.table.blocks)
                text.blocks = len(text.table.blocks)
        else:
            loop.end(place)
    if wanted:
        free = iter(loop.free_places())
        for sequence in sequences:
            if sequence in wanted:
                _begin(loop, next(free), sequence)


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
    )
    text = PlacedText(sequence, table, table.cuts, len(table.blocks), len(sequence.tokens))
    loop.begin(place, text, continuation)
    sequence.policy.release(sequence)  # what its drafters know of the text is out of date from here on
