"""Single tokens as text and as bytes."""

from functools import cache, lru_cache
from typing import Any

import orjson

from stridelm.models.tokenizer import TextTokenizer

_BROKEN = "\N{REPLACEMENT CHARACTER}"


class Vocabulary:
    """A tokenizer's tokens, one by one."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        decoder = getattr(backend, "decoder", None)
        self._kinds = _kinds(orjson.loads(decoder.__getstate__())) if decoder is not None else frozenset()
        added = tokenizer.added_tokens_decoder
        self._added = {token: entry.content for token, entry in added.items()}
        self.special = {entry.content: token for token, entry in added.items() if entry.special}
        """The special tokens, which are not part of the text, by their names."""
        self.text = lru_cache(maxsize=65536)(self._text)

    def bytes(self, token: int) -> list[int] | None:
        """The token's bytes, even if they are only part of a character; None if they cannot be found out."""
        written: str | None = self._added.get(token) or self._tokenizer.convert_ids_to_tokens(token)
        if written is None:  # beyond what the tokenizer knows: such a token has no text
            return []
        if token not in self._added:
            if "ByteLevel" in self._kinds and all(letter in _byte_of() for letter in written):
                return [_byte_of()[letter] for letter in written]
            if "ByteFallback" in self._kinds and len(written) == 6 and written.startswith("<0x"):
                return [int(written[3:5], 16)]
        text = self.text(token)
        return None if _BROKEN in text else list(text.encode())

    def _text(self, token: int) -> str:
        written: str | None = self._tokenizer.convert_ids_to_tokens(token)
        if written is not None and written.startswith("▁") and "ByteFallback" in self._kinds:
            # Decoders of this kind drop the first token's leading space; in the middle of a text it is kept.
            return written.replace("▁", " ")
        return self._tokenizer.decode([token])


def _kinds(state: dict[str, Any]) -> frozenset[str]:
    """The kinds of decoders that a tokenizer applies one after the other."""
    inner = state.get("decoders", ())
    return frozenset({state["type"], *(kind for each in inner for kind in _kinds(each))})


@cache
def _byte_of() -> dict[str, int]:
    """The byte of each letter of byte-level tokenizers: printable bytes are themselves, the others are above 255."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}
