"""Which blocks of the cache hold which texts: a later text with the same beginning starts from their keys and values.

Only whole blocks are indexed, each by its own tokens and by the entry before it. The tokens themselves are compared,
not only a hash of them: no two texts can be confused.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

START = 0
"""The number that stands for the beginning of a text."""


@dataclass(frozen=True, slots=True)
class _Entry:
    number: int
    """Identifies this entry; never reused, so entries that follow a dropped one are never found."""
    block: int


class PrefixIndex:
    """Blocks by content. A block that no table holds stays indexed until the cache reuses it."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.last_use = np.zeros(blocks)
        """Per block, when it was last used; 0 for blocks that are not indexed."""
        self._entries: dict[tuple[int, tuple[int, ...]], _Entry] = {}
        """(number of the entry before, tokens) -> entry."""
        self._keys: dict[int, tuple[int, tuple[int, ...]]] = {}
        """Block -> its key above."""
        self._number = START
        self._clock = 0

    def find(self, tokens: Items[int]) -> tuple[list[int], int]:
        """The blocks that hold the longest indexed beginning of these tokens, and the number of the last entry."""
        found: list[int] = []
        number = START
        for start in range(0, len(tokens) - self.block_size + 1, self.block_size):
            entry = self._entries.get((number, tuple(tokens[start : start + self.block_size])))
            if entry is None:
                break
            found.append(entry.block)
            number = entry.number
        self.touch(found)
        return found, number

    def add(self, before: int, tokens: Items[int], block: int) -> int:
        """Add a block that holds these tokens, after the entry `before`. If another block is indexed for them, that one
        stays. Returns the entry's number in either case."""
        key = (before, tuple(tokens))
        entry = self._entries.get(key)
        if entry is None:
            self._number += 1
            entry = self._entries[key] = _Entry(self._number, block)
            self._keys[block] = key
        self.touch([entry.block])
        return entry.number

    def touch(self, blocks: Items[int]) -> None:
        """Mark blocks as just used. Of one text, later blocks count as slightly older and are reused first: they are of
        no use without the earlier ones."""
        self._clock += 1
        for depth, block in enumerate(blocks):
            if block in self._keys:
                self.last_use[block] = self._clock - depth / 2**20

    def drop(self, blocks: Items[int]) -> None:
        """Remove blocks whose content is about to change."""
        for block in blocks:
            key = self._keys.pop(block, None)
            if key is not None:
                del self._entries[key]
                self.last_use[block] = 0.0

    def __len__(self) -> int:
        return len(self._entries)
