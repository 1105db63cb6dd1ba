"""The KV cache's bookkeeping: blocks that sequences share by reference count.

A sequence's cache is a Table: a list of block numbers and a length. The rows of a step are appended behind that length,
in blocks that no other table holds; `keep` then moves the accepted rows together, and the rest is dropped. Consecutive
blocks are read as one view, without a copy: tables get such runs if there are any.

Whole blocks are indexed by their content (`cache/prefix_index.py`): a text with the same beginning starts from them.
Blocks that no table holds any more are free, and are reused as late as possible.

Keys and values themselves are in a memory of the backend's own, by slot: block number x block size + offset.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from stridelm.cache.prefix_index import START, PrefixIndex
from stridelm.params import InputError

BLOCK_SIZE = 16


class CacheFull(InputError):
    """No free blocks are left."""


@dataclass(eq=False, slots=True)
class Table:
    """One sequence's part of the cache."""

    blocks: list[int] = field(default_factory=list)
    length: int = 0
    """Tokens kept."""
    step_rows: int = 0
    """Rows of the step in flight, behind `length`."""
    reserved: int = 0
    """Number of blocks that stay with the table, used or not."""
    granted: int = 0
    """Number of blocks that stay until the end of the next step."""
    published: int = 0
    """Number of its blocks that are in the prefix index."""
    cuts: int = 0
    """How often blocks were taken from the table: steps launched before may still write to them."""
    last_published: int = START
    """The index's number of the last published block."""

    @property
    def capacity(self) -> int:
        """Tokens that the table's blocks have room for."""
        return len(self.blocks) * BLOCK_SIZE

    @property
    def is_run(self) -> bool:
        """Whether the blocks are consecutive in memory."""
        first = self.blocks[0] if self.blocks else 0
        return self.blocks == list(range(first, first + len(self.blocks)))


class KVMemory(Protocol):
    """A backend's memory for the keys and values of all layers, slot by slot."""

    def move(self, target: np.ndarray, source: np.ndarray) -> None:
        """Copy the content of some slots to others, in all layers. The two may overlap: everything is read before
        anything is written."""
        ...


class KVCache:
    """The pool of blocks."""

    def __init__(self, tokens: int, memory: KVMemory | None = None) -> None:
        """Without a memory nothing is moved: for callers that only count blocks."""
        self.block_count = blocks_for(tokens)
        self.memory = memory
        self.references = np.zeros(self.block_count, dtype=np.int32)
        self.index = PrefixIndex(self.block_count, BLOCK_SIZE)
        self.free_blocks = self.block_count
        """Number of blocks that no table holds. Kept up to date with `references`, since it is read for every sequence
        in every step."""
        self.tables: set[Table] = set()

    @property
    def capacity(self) -> int:
        """Tokens that all blocks together have room for: what was asked for, rounded up to whole blocks."""
        return self.block_count * BLOCK_SIZE

    def open(self, reserve: int = 0) -> Table:
        """A new table, with blocks for `reserve` tokens set aside for it, in one run if possible."""
        table = Table(reserved=blocks_for(reserve))
        table.blocks = self._take(table.reserved, after=None)
        self.tables.add(table)
        return table

    def adopt(self, tokens: Items[int], reserve: int = 0) -> Table:
        """A table that starts from the indexed blocks of these tokens (whole blocks, but never all of the tokens), with
        room for `reserve` tokens set aside.

        If room is scarce, the indexed blocks are shared. Otherwise they are copied into a run of the table's own: one
        copy now, whereas a scattered table needs one per layer in every step.
        """
        known, last = self.index.find(tokens[: max(0, len(tokens) - 1)])
        blocks = max(blocks_for(reserve), len(known))
        if known and self.free_blocks - blocks >= self.block_count // 2:
            self._hold(known)  # so that none of them is taken for the copy
            table = self.open(blocks * BLOCK_SIZE)
            self._move(self._all_slots(table.blocks[: len(known)]), self._all_slots(known))
            self._let_go(known)
        else:
            self._hold(known)
            table = Table(blocks=list(known), reserved=blocks)
            self.tables.add(table)
            try:
                self._grow(table, blocks)
            except CacheFull:
                self.free(table)
                raise
        table.length = len(known) * BLOCK_SIZE
        table.published, table.last_published = len(known), last
        return table

    def publish(self, table: Table, tokens: Items[int]) -> None:
        """Add the whole blocks of a table's kept tokens to the index, so that other texts may start from them."""
        length = min(table.length, len(tokens))  # after a stop string, more tokens are kept than the text has
        while (table.published + 1) * BLOCK_SIZE <= length:
            start = table.published * BLOCK_SIZE
            held = tokens[start : start + BLOCK_SIZE]
            table.last_published = self.index.add(table.last_published, held, table.blocks[table.published])
            table.published += 1

    def forget(self) -> None:
        """Clear the index: no text starts from blocks of earlier ones."""
        self.index.drop(range(self.block_count))

    def shared_blocks(self, tokens: Items[int]) -> int:
        """Number of blocks that `adopt` would share and other tables hold."""
        known, _ = self.index.find(tokens[: max(0, len(tokens) - 1)])
        return int((self.references[known] > 0).sum())

    def room_without(self, tables: Items[Table], tokens: Items[int]) -> int:
        """Number of free blocks, plus those that `adopt` would share, if these tables were freed."""
        references = self.references.copy()
        for table in tables:
            references[table.blocks] -= 1
        known, _ = self.index.find(tokens[: max(0, len(tokens) - 1)])
        return int((references == 0).sum() + (references[known] > 0).sum())

    def grant(self, table: Table, tokens: int) -> None:
        """Make room for `tokens` tokens in all, until the end of the next step."""
        blocks = blocks_for(tokens)
        if blocks > table.granted:
            self._grow(table, blocks)
            table.granted = blocks

    def reserve(self, table: Table, tokens: int) -> None:
        """Set blocks aside for `tokens` tokens in all, besides the table's current blocks, until `give_back`."""
        self._grow(table, blocks_for(tokens))
        table.reserved = len(table.blocks)

    def give_back(self, table: Table) -> int:
        """Take back the unused blocks that were set aside for a table; returns their number."""
        held = len(table.blocks)
        table.reserved = 0
        self._cut(table, max(blocks_for(table.length + table.step_rows), table.granted))
        return held - len(table.blocks)

    def append(self, table: Table, rows: int) -> np.ndarray:
        """Make room for a step's rows behind the kept tokens; returns their slots."""
        self.begin_step(table, rows)
        return self.slots(table, table.length, table.length + rows)

    def begin_step(self, table: Table, rows: int) -> None:
        """`append` without computing the rows' slots."""
        assert table.step_rows == 0, "the step before was neither kept nor truncated"
        self._grow(table, blocks_for(table.length + rows))
        table.step_rows = rows

    def keep(self, table: Table, path: Items[int]) -> None:
        """End a step: keep its rows `path` (rising) as the next tokens, drop the others."""
        count, last = len(path), path[-1] if path else -1
        assert last < table.step_rows
        if last >= count:  # otherwise the path is the first rows, which are in place already
            slots = self.slots(table, table.length, table.length + table.step_rows)
            moved = [(to, row) for to, row in enumerate(path) if row != to]
            self._move(*(slots[list(side)] for side in zip(*moved, strict=True)))
        self._end_step(table, table.length + count)

    def truncate(self, table: Table, length: int) -> None:
        """Drop everything after the first `length` tokens, and a step in flight."""
        assert 0 <= length <= table.length
        self._end_step(table, length)

    def _end_step(self, table: Table, length: int) -> None:
        table.length = length
        table.step_rows = table.granted = 0
        if len(table.blocks) > table.reserved:
            self._cut(table, max(blocks_for(length), table.reserved))

    def free(self, table: Table) -> None:
        """The sequence has ended: release its blocks."""
        self.index.touch(table.blocks)
        table.length = table.step_rows = table.reserved = table.granted = table.published = 0
        self._cut(table, 0)
        self.tables.discard(table)

    def _cut(self, table: Table, blocks: int) -> None:
        if len(table.blocks) > blocks:
            self._let_go(table.blocks[blocks:])
            del table.blocks[blocks:]
            table.cuts += 1
        assert table.published <= len(table.blocks), "what others may start from was cut off"

    def reading_slots(self, table: Table) -> slice | np.ndarray:
        """The slots that a step reads: kept tokens and the step's rows. A slice if they are one run."""
        end = table.length + table.step_rows
        if table.is_run:
            first = table.blocks[0] * BLOCK_SIZE
            return slice(first, first + end)
        return self.slots(table, 0, end)

    def slots(self, table: Table, start: int, end: int) -> np.ndarray:
        places = np.arange(start, end)
        return np.asarray(table.blocks, dtype=np.int64)[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE

    @staticmethod
    def _all_slots(blocks: list[int]) -> np.ndarray:
        return (np.asarray(blocks, dtype=np.int64)[:, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).ravel()

    def check_integrity(self) -> None:
        """Every block is counted once per table that holds it, and no table holds less than it needs."""
        counted = np.zeros_like(self.references)
        for table in self.tables:
            assert len(set(table.blocks)) == len(table.blocks), "a table holds a block twice"
            assert len(table.blocks) >= blocks_for(table.length + table.step_rows), "a table lacks blocks"
            counted[table.blocks] += 1
            if table.step_rows:
                written = table.blocks[table.length // BLOCK_SIZE : blocks_for(table.length + table.step_rows)]
                assert (self.references[written] == 1).all(), "a step was written into a shared block"
            assert table.published * BLOCK_SIZE <= table.length, "others may start from what is not kept"
        assert (counted == self.references).all(), "a reference count differs from the tables that hold the block"
        assert self.free_blocks == np.count_nonzero(counted == 0), "the free blocks were miscounted"

    def _grow(self, table: Table, blocks: int) -> None:
        missing = blocks - len(table.blocks)
        if missing > 0:
            table.blocks.extend(self._take(missing, after=table.blocks[-1] if table.blocks else None))

    def _take(self, count: int, after: int | None) -> list[int]:
        """Take free blocks: right behind `after` if possible, else one run, else any."""
        if count > self.free_blocks:
            raise CacheFull(
                f"the KV cache of {self.capacity} tokens is full: ask for fewer tokens at once, "
                "or give it more room with cache_tokens (--cache-tokens)"
            )
        if after is not None and np.count_nonzero(self.references[after + 1 : after + 1 + count] == 0) == count:
            taken = list(range(after + 1, after + 1 + count))
        else:
            is_free = self.references == 0
            taken = self._least_missed(np.where(is_free, self.index.last_use, np.inf), count).tolist()
        self._hold(taken)
        self.index.drop(taken)
        return taken

    def _hold(self, blocks: list[int]) -> None:
        self.free_blocks -= int(np.count_nonzero(self.references[blocks] == 0))
        self.references[blocks] += 1

    def _let_go(self, blocks: list[int]) -> None:
        self.references[blocks] -= 1
        self.free_blocks += int(np.count_nonzero(self.references[blocks] == 0))

    @staticmethod
    def _least_missed(last_use: np.ndarray, count: int) -> np.ndarray:
        """The least recently used free blocks: as one run if there is one, else single blocks."""
        if count > 1:
            latest = _window_max(last_use, count)
            first = int(latest.argmin())
            if latest[first] < np.inf:
                return np.arange(first, first + count)
        return np.sort(np.argsort(last_use, kind="stable")[:count])

    def _move(self, target: np.ndarray, source: np.ndarray) -> None:
        if self.memory is not None:
            self.memory.move(target, source)


def _window_max(values: np.ndarray, size: int) -> np.ndarray:
    """The maximum of each window of `size` neighbours, computed by doubling the window's size."""
    width = 1
    while width < size:
        shift = min(width, size - width)
        values = np.maximum(values[:-shift], values[shift:])
        width += shift
    return values


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)
