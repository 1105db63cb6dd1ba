"""From token ids to text while it is being written: whole characters only, and stop strings across token borders."""

from collections.abc import Sequence as Items
from functools import lru_cache

from stridelm.models.tokenizer import TextTokenizer
from stridelm.models.vocabulary.pieces import PieceDecoder

_BROKEN = "\N{REPLACEMENT CHARACTER}"
"""What a decoder writes for bytes that are no whole character (yet)."""
_CACHE_SIZE = 2**15
"""Maximum number of short texts in the cache: some megabytes."""
_SHORT = 2
"""Texts of at most this many tokens are cached."""


class Detokenizer:
    """A tokenizer's `decode`, shared by all streams of an engine. For every token a stream decodes that token together
    with the one before, so recently decoded pairs are cached."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer
        self._pieces = PieceDecoder.of(tokenizer)
        self._cached = lru_cache(_CACHE_SIZE)(self._decode)

    def __call__(self, ids: tuple[int, ...]) -> str:
        return self._cached(ids) if len(ids) <= _SHORT else self._decode(ids)

    def _decode(self, ids: tuple[int, ...]) -> str:
        if self._pieces is not None:
            return self._pieces(ids)
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)


class TextStream:
    """Takes tokens one by one and returns text as soon as later tokens can no longer change it."""

    def __init__(self, decode: Detokenizer, stop: Items[str] = ()) -> None:
        self.stop = stop
        self.stopped_by: str | None = None
        """The stop string that is complete."""
        self._decode = decode
        self._ids: tuple[int, ...] = ()
        """The latest tokens. The text of the first `_read` of them was returned already; they are decoded again
        together with the tokens that follow, because some tokenizers decode a token differently next to others."""
        self._read = 0
        """How many of `_ids` are part of the text that was returned."""
        self._known = ""
        """The text of these."""
        self._held = ""
        """Text that is not returned yet, because a stop string may begin in it."""

    def push(self, token: int) -> str:
        """Returns the text that is final once this token is known. Sets `stopped_by` if a stop string is complete."""
        self._ids += (token,)
        text, known = self._decode(self._ids), self._known
        if text.endswith(_BROKEN) or len(text) <= len(known):
            return ""
        self._ids = self._ids[self._read :]
        self._read, self._known = len(self._ids), self._decode(self._ids)
        return self._release(text[len(known) :])

    def flush(self) -> str:
        """The rest, at the end of the answer: an incomplete character, or the beginning of a stop string."""
        if self.stopped_by is not None:
            return ""
        released = self._release(self._decode(self._ids)[len(self._known) :]) + self._held
        self._held = ""
        return released

    def _release(self, text: str) -> str:
        if not self.stop:
            return text
        self._held += text
        ends = [(at, stop) for stop in self.stop if (at := self._held.find(stop)) >= 0]
        if ends:
            first, self.stopped_by = min(ends)
            released, self._held = self._held[:first], ""
            return released
        keep = max((overlap(self._held, stop) for stop in self.stop), default=0)
        released, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return released


def overlap(text: str, stop: str) -> int:
    """The length of the longest ending of `text` that begins `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-size:])), 0)
