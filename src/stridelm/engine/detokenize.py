"""From token ids to text while it is being written: whole characters only, and stop strings across token borders."""

from collections.abc import Sequence as Items

from stridelm.model.tokenizer import TextTokenizer

_BROKEN = "\N{REPLACEMENT CHARACTER}"
"""What a decoder writes for bytes that are no whole character (yet)."""


class TextStream:
    """Feed it tokens one by one; it releases the text that is certain."""

    def __init__(self, tokenizer: TextTokenizer, stop: Items[str] = ()) -> None:
        self.tokenizer = tokenizer
        self.stop = stop
        self.stopped = False
        self._ids: list[int] = []
        self._context = 0
        """Text is decoded from here, so that tokenizers that look at a token's neighbours see the same ones twice."""
        self._read = 0
        """The ids before this one are in the text."""
        self._held = ""

    def push(self, token: int) -> str:
        """The text that this token makes certain. Sets `stopped` if a stop string is complete."""
        self._ids.append(token)
        known, text = self._decode(self._context, self._read), self._decode(self._context, len(self._ids))
        if text.endswith(_BROKEN) or len(text) <= len(known):
            return ""
        self._context, self._read = self._read, len(self._ids)
        return self._release(text[len(known) :])

    def flush(self) -> str:
        """The rest, at the end of the answer: a broken character, the beginning of a stop string that did not come."""
        if self.stopped:
            return ""
        rest = self._decode(self._context, len(self._ids))[len(self._decode(self._context, self._read)) :]
        released = self._release(rest) + self._held
        self._held = ""
        return released

    def _release(self, text: str) -> str:
        self._held += text
        ends = [at for at in (self._held.find(stop) for stop in self.stop) if at >= 0]
        if ends:
            released, self._held = self._held[: min(ends)], ""
            self.stopped = True
            return released
        keep = max((overlap(self._held, stop) for stop in self.stop), default=0)
        released, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return released

    def _decode(self, start: int, end: int) -> str:
        return self.tokenizer.decode(self._ids[start:end], skip_special_tokens=True)


def overlap(text: str, stop: str) -> int:
    """The length of the longest ending of `text` that begins `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-size:])), 0)
