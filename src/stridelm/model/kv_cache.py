"""Keys and values of all layers, in blocks that sequences share by reference count.

A sequence's cache is a Table: a list of block numbers and a length. The rows of a step are appended behind that length,
in blocks that no other table holds; `keep` then closes the gap between the rows that were accepted, and the rest is
forgotten. Blocks in a row in memory are read as one view, without a copy: tables get such runs when there are any.

Shape letters: H key-value heads, S slots (block number x block size + offset), D head size, T tokens.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch

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
    """So many blocks stay with the table, used or not."""

    @property
    def capacity(self) -> int:
        """Tokens that the table's blocks have room for."""
        return len(self.blocks) * BLOCK_SIZE

    @property
    def is_run(self) -> bool:
        """Whether the blocks lie one behind the other."""
        return all(later == earlier + 1 for earlier, later in pairwise(self.blocks))


class KVCache:
    """The pool of blocks. A layer's memory is made when the layer first writes, in the shape it writes."""

    def __init__(self, tokens: int) -> None:
        self.block_count = blocks_for(tokens)
        self.references = np.zeros(self.block_count, dtype=np.int32)
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.tables: set[Table] = set()

    @property
    def free_blocks(self) -> int:
        return int((self.references == 0).sum())

    def open(self, reserve: int = 0) -> Table:
        """A new table, with blocks for `reserve` tokens set aside for it, in one run where there is one."""
        table = Table(reserved=blocks_for(reserve))
        table.blocks = self._take(table.reserved, after=None)
        self.tables.add(table)
        return table

    def fork(self, table: Table, length: int, reserve: int = 0) -> Table:
        """A table with the same first `length` tokens; their blocks are shared until one side writes to them."""
        assert length <= table.length
        shared = table.blocks[: blocks_for(length)]
        self.references[shared] += 1
        copy = Table(blocks=list(shared), length=length)
        self.tables.add(copy)
        try:
            self._grow(copy, blocks_for(reserve))
        except CacheFull:
            self.free(copy)
            raise
        copy.reserved = len(copy.blocks)
        return copy

    def append(self, table: Table, rows: int) -> np.ndarray:
        """Make room for a step's rows behind the kept tokens; returns their slots."""
        assert table.step_rows == 0, "the step before was neither kept nor truncated"
        end = table.length + rows
        self._grow(table, blocks_for(end))
        for index in range(table.length // BLOCK_SIZE, blocks_for(end)):
            if self.references[table.blocks[index]] > 1:
                self._copy_block(table, index)
        table.step_rows = rows
        return self.slots(table, table.length, end)

    def keep(self, table: Table, path: Items[int]) -> None:
        """End a step: keep the rows `path` (rising) of it as the next tokens, forget the others."""
        assert all(row < table.step_rows for row in path)
        moved = [(to, row) for to, row in enumerate(path) if row != to]
        if moved:
            slots = self.slots(table, table.length, table.length + table.step_rows)
            self._move(*(torch.from_numpy(slots[list(side)]) for side in zip(*moved, strict=True)))
        self.truncate(table, table.length + len(path), kept_in_step=len(path))

    def truncate(self, table: Table, length: int, *, kept_in_step: int = 0) -> None:
        """Forget all behind the first `length` tokens, and a step in flight."""
        assert 0 <= length <= table.length + kept_in_step
        table.length = length
        table.step_rows = 0
        needed = max(blocks_for(length), table.reserved)
        self.references[table.blocks[needed:]] -= 1
        del table.blocks[needed:]

    def free(self, table: Table) -> None:
        """The sequence has ended: give its blocks back."""
        self.references[table.blocks] -= 1
        table.blocks.clear()
        table.length = table.step_rows = table.reserved = 0
        self.tables.discard(table)

    def write(self, layer: int, slots: torch.Tensor, keys_HTD: torch.Tensor, values_HTD: torch.Tensor) -> None:
        if layer not in self.layers:
            self.layers[layer] = self._memory(keys_HTD), self._memory(values_HTD)
        keys_HSD, values_HSD = self.layers[layer]
        keys_HSD.index_copy_(1, slots, keys_HTD)
        values_HSD.index_copy_(1, slots, values_HTD)

    def _memory(self, like_HTD: torch.Tensor) -> torch.Tensor:
        try:
            return like_HTD.new_empty((like_HTD.shape[0], self.block_count * BLOCK_SIZE, like_HTD.shape[2]))
        except RuntimeError as error:
            raise InputError(
                f"there is no memory for a KV cache of {self.block_count * BLOCK_SIZE} tokens: give it fewer with "
                "cache_tokens (--cache-tokens)"
            ) from error

    def read(self, layer: int, slots: slice | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values at these slots, as `reading_slots` gave them."""
        keys_HSD, values_HSD = self.layers[layer]
        return keys_HSD[:, slots], values_HSD[:, slots]

    def reading_slots(self, table: Table) -> slice | np.ndarray:
        """Where a step reads this table: kept tokens and the step's rows. A slice if they lie in one run."""
        end = table.length + table.step_rows
        if table.is_run:
            first = table.blocks[0] * BLOCK_SIZE
            return slice(first, first + end)
        return self.slots(table, 0, end)

    def slots(self, table: Table, start: int, end: int) -> np.ndarray:
        places = np.arange(start, end)
        return np.asarray(table.blocks, dtype=np.int64)[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE

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
        assert (counted == self.references).all(), "a reference count differs from the tables that hold the block"

    def _grow(self, table: Table, blocks: int) -> None:
        missing = blocks - len(table.blocks)
        if missing > 0:
            table.blocks.extend(self._take(missing, after=table.blocks[-1] if table.blocks else None))

    def _take(self, count: int, after: int | None) -> list[int]:
        """Free blocks: right behind `after` if they are free there, else one run, else wherever they are."""
        is_free = self.references == 0
        if int(is_free.sum()) < count:
            raise CacheFull(
                f"the KV cache of {self.block_count * BLOCK_SIZE} tokens is full: ask for fewer tokens at once, "
                "or give it more room with cache_tokens (--cache-tokens)"
            )
        if after is not None and is_free[after + 1 : after + 1 + count].sum() == count:
            taken = np.arange(after + 1, after + 1 + count)
        else:
            free = np.flatnonzero(is_free)
            runs = np.flatnonzero(free[count - 1 :] - free[: len(free) - count + 1] == count - 1) if count else free[:0]
            first = int(runs[0]) if len(runs) else 0
            taken = free[first : first + count]
        self.references[taken] = 1
        return taken.tolist()

    @torch.inference_mode()
    def _move(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy the content of some slots to others, in all layers."""
        for keys, values in self.layers.values():
            to, of = target.to(keys.device), source.to(keys.device)
            keys[:, to] = keys[:, of]
            values[:, to] = values[:, of]

    @torch.inference_mode()
    def _copy_block(self, table: Table, index: int) -> None:
        """Give the table a block of its own in place of a shared one, with the same content."""
        shared = table.blocks[index]
        (own,) = self._take(1, after=None)
        for keys, values in self.layers.values():
            for part in (keys, values):
                part[:, own * BLOCK_SIZE : (own + 1) * BLOCK_SIZE] = part[
                    :, shared * BLOCK_SIZE : (shared + 1) * BLOCK_SIZE
                ]
        self.references[shared] -= 1
        table.blocks[index] = own


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)
