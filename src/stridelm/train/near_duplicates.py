"""Filters near-duplicates among prompts: a model that makes up instructions repeats many of them."""

import hashlib
import re
from collections import defaultdict
from heapq import nsmallest

_SHINGLE = 3
"""Number of consecutive words in a shingle, the unit of comparison."""
_SKETCH = 16
"""Maximum number of hashes in a text's sketch."""
_SHARE = 60
"""Percentage of the larger sketch that near-duplicates share at least."""
_WORD = re.compile(r"\d+(?:[.,:]\d+)*|[^\W\d_]+")

Sketch = frozenset[bytes]


class Sieve:
    """Admits a text unless it is a near-duplicate of one admitted before.

    Two texts are near-duplicates if their sketches share enough hashes. A sketch holds the smallest hashes of a text's
    shingles: the fraction that two long texts' sketches share is about the fraction of shingles that they share.
    """

    def __init__(self) -> None:
        self._short: set[str] = set()
        self._by_size: dict[int, dict[bytes, list[Sketch]]] = {}
        """The admitted sketches, by their size and then by each of their hashes."""

    def admit(self, text: str) -> bool:
        """Whether the text is new. Admitted texts are remembered."""
        words = _words(text)
        if len(words) < _SHINGLE:
            whole = " ".join(words) or text
            is_new = whole not in self._short
            self._short.add(whole)
            return is_new
        sketch = _sketch(words)
        if self._knows(sketch):
            return False
        postings = self._by_size.setdefault(len(sketch), defaultdict(list))
        for shingle_hash in sketch:
            postings[shingle_hash].append(sketch)
        return True

    def _knows(self, sketch: Sketch) -> bool:
        for size, postings in self._by_size.items():
            needed = _needed(size, len(sketch))
            # A near-duplicate is missing from at most len(sketch) - needed of these lists, so one more than that many
            # lists are enough. The shortest are searched: common phrases have the longest lists.
            lists = sorted((postings.get(shingle_hash, []) for shingle_hash in sketch), key=len)
            for others in lists[: len(sketch) - needed + 1]:
                if any(len(sketch & other) >= needed for other in others):
                    return True
        return False


def _words(text: str) -> list[str]:
    """The words without case and punctuation, with 0 for every number: none of these makes a prompt new."""
    return ["0" if word[0].isdecimal() else word for word in _WORD.findall(text.casefold())]


def _sketch(words: list[str]) -> Sketch:
    """The sketch of a text. Hashed by hashlib, because Python's own hash differs between processes."""
    shingles = {" ".join(words[start : start + _SHINGLE]) for start in range(len(words) - _SHINGLE + 1)}
    hashes = (hashlib.blake2b(shingle.encode(), digest_size=8).digest() for shingle in shingles)
    return frozenset(nsmallest(_SKETCH, hashes))


def _needed(size: int, other: int) -> int:
    return -(-max(size, other) * _SHARE // 100)
