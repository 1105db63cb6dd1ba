"""Which blocks of the cache hold which texts: a later text that begins alike starts from their keys and values.

Only whole blocks are known, each by its own tokens and by what stands before it. The tokens themselves are compared,
never a hash of them: no two texts can be taken for each other.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

START = 0
"""What stands before a text's first block."""


@dataclass(frozen=True, slots=True)
class _Entry:
    number: int
    """Names this entry; never used again, so what hangs off one that was dropped is never found."""
    block: int


class PrefixIndex:
    """Blocks by content. A block that nobody holds stays known until the cache needs its room."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.last_use = np.zeros(blocks)
        """Per block, when it was last of use; 0 for those whose content is not known."""
        self._entries: dict[tuple[int, tuple[int, ...]], _Entry] = {}
        """(what stands before, tokens) -> block."""
        self._keys: dict[int, tuple[int, tuple[int, ...]]] = {}
        """Block -> its key above."""
        self._number = START
        self._clock = 0

    def find(self, tokens: Items[int]) -> tuple[list[int], int]:
        """The blocks that hold the longest known beginning of these tokens, and the name of the last of them."""
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
        """A block holds these tokens, behind what `before` names. Where another block is known for them, that one
        stays. Returns the name of either."""
        key = (before, tuple(tokens))
        entry = self._entries.get(key)
        if entry is None:
            self._number += 1
            entry = self._entries[key] = _Entry(self._number, block)
            self._keys[block] = key
        self.touch([entry.block])
        return entry.number

    def touch(self, blocks: Items[int]) -> None:
        """These were of use just now. Of one text the later blocks are forgotten first: they are of no use without the
        earlier ones."""
        self._clock += 1
        for depth, block in enumerate(blocks):
            if block in self._keys:
                self.last_use[block] = self._clock - depth / 2**20

    def drop(self, blocks: Items[int]) -> None:
        """These get another content."""
        for block in blocks:
            key = self._keys.pop(block, None)
            if key is not None:
                del self._entries[key]
                self.last_use[block] = 0.0

    def __len__(self) -> int:
        return len(self._entries)
