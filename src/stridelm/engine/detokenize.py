"""From token ids to text while it is being written: whole characters only, and stop strings across token borders."""

from collections.abc import Sequence as Items
from functools import lru_cache

from stridelm.models.tokenizer import TextTokenizer

_BROKEN = "\N{REPLACEMENT CHARACTER}"
"""What a decoder writes for bytes that are no whole character (yet)."""
_REMEMBERED = 2**15
"""Texts, each of at most so many tokens: some megabytes."""
_SHORT = 2


class Detokenizer:
    """A tokenizer's `decode` for all streams of an engine. For every token they ask about it and the one before: the
    texts of late are remembered."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer
        self._remembered = lru_cache(_REMEMBERED)(self._decode)

    def __call__(self, ids: tuple[int, ...]) -> str:
        return self._remembered(ids) if len(ids) <= _SHORT else self._decode(ids)

    def _decode(self, ids: tuple[int, ...]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)


class TextStream:
    """Feed it tokens one by one; it releases the text that is certain."""

    def __init__(self, decode: Detokenizer, stop: Items[str] = ()) -> None:
        self.stop = stop
        self.stopped = False
        self._decode = decode
        self._ids: tuple[int, ...] = ()
        """The last ones. Of the first of them the text is known: they are decoded again with what follows, so that
        tokenizers that look at a token's neighbours see the same ones twice."""
        self._read = 0
        """So many of the ids are in the text."""
        self._known = ""
        """Their text."""
        self._held = ""

    def push(self, token: int) -> str:
        """The text that this token makes certain. Sets `stopped` if a stop string is complete."""
        self._ids += (token,)
        text, known = self._decode(self._ids), self._known
        if text.endswith(_BROKEN) or len(text) <= len(known):
            return ""
        self._ids = self._ids[self._read :]
        self._read, self._known = len(self._ids), self._decode(self._ids)
        return self._release(text[len(known) :])

    def flush(self) -> str:
        """The rest, at the end of the answer: a broken character, the beginning of a stop string that did not come."""
        if self.stopped:
            return ""
        released = self._release(self._decode(self._ids)[len(self._known) :]) + self._held
        self._held = ""
        return released

    def _release(self, text: str) -> str:
        if not self.stop:
            return text
        self._held += text
        ends = [at for at in (self._held.find(stop) for stop in self.stop) if at >= 0]
        if ends:
            released, self._held = self._held[: min(ends)], ""
            self.stopped = True
            return released
        keep = max((overlap(self._held, stop) for stop in self.stop), default=0)
        released, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return released


def overlap(text: str, stop: str) -> int:
    """The length of the longest ending of `text` that begins `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-size:])), 0)
