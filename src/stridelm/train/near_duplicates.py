"""Keep prompts that say something new: a model asked for instructions writes many of them several times over."""

import hashlib
import re
from collections import defaultdict
from heapq import nsmallest

_SHINGLE = 3
"""Words in a row that are compared as one."""
_SKETCH = 16
"""Hashes that stand for a text."""
_SHARE = 60
"""Per cent of the larger sketch that near-duplicates have in common."""
_WORD = re.compile(r"\d+(?:[.,:]\d+)*|[^\W\d_]+")

Sketch = frozenset[bytes]


class Sieve:
    """Lets a text through unless it is nearly the same as one that it let through before.

    Two texts are nearly the same when their sketches share enough hashes. A sketch holds the smallest hashes of a
    text's shingles: two long texts share about as great a part of their sketches as of all their shingles.
    """

    def __init__(self) -> None:
        self._short: set[str] = set()
        self._by_size: dict[int, dict[bytes, list[Sketch]]] = {}
        """The admitted sketches, by their size and then by each of their hashes."""

    def admit(self, text: str) -> bool:
        """Whether the text is new. What is admitted is remembered."""
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
            # A text that shares that many is missing from few lists, so the shortest lists are enough; those of common
            # phrases are the longest.
            lists = sorted((postings.get(shingle_hash, []) for shingle_hash in sketch), key=len)
            for others in lists[: len(sketch) - needed + 1]:
                if any(len(sketch & other) >= needed for other in others):
                    return True
        return False


def _words(text: str) -> list[str]:
    """The words without case and punctuation, every number being 0: neither makes another question."""
    return ["0" if word[0].isdecimal() else word for word in _WORD.findall(text.casefold())]


def _sketch(words: list[str]) -> Sketch:
    """Hashed by hashlib: Python's own hash differs from process to process."""
    shingles = {" ".join(words[start : start + _SHINGLE]) for start in range(len(words) - _SHINGLE + 1)}
    hashes = (hashlib.blake2b(shingle.encode(), digest_size=8).digest() for shingle in shingles)
    return frozenset(nsmallest(_SKETCH, hashes))


def _needed(size: int, other: int) -> int:
    return -(-max(size, other) * _SHARE // 100)
