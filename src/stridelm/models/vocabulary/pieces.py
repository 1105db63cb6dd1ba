"""SentencePiece's tokens as text, where letters may be split into tokens for their bytes.

The tokenizers library replaces a whole run of such tokens by replacement characters if any part of it is no text. So a
token could take back letters before it, and the text of a stream would not be the text of its tokens. Here, as in
tokenizers over bytes, what is complete stays.
"""

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Self

from stridelm.models.tokenizer import TextTokenizer

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_CACHE_SIZE = 2**16


class PieceDecoder:
    """Decodes without special tokens."""

    def __init__(self, tokenizer: TextTokenizer, replaced: list[tuple[str, str]], stripped: int) -> None:
        """`replaced`: what stands for what in tokens. `stripped`: maximum number of spaces that a text loses at its
        beginning."""
        self._tokenizer = tokenizer
        self._replaced = replaced
        self._stripped = stripped
        self._special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
        self._bytes = lru_cache(_CACHE_SIZE)(self._bytes_of)

    @classmethod
    def of(cls, tokenizer: TextTokenizer) -> Self | None:
        """None if its tokens are decoded in another way than this."""
        decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
        steps: list[dict[str, Any]] = json.loads(decoder.__getstate__()).get("decoders", []) if decoder else []
        replaced: list[tuple[str, str]] = []
        stripped = 0
        for step in steps:
            match step:
                case {"type": "Replace", "pattern": {"String": old}, "content": new}:
                    replaced.append((old, new))
                case {"type": "Strip", "content": " ", "start": start, "stop": 0}:
                    stripped = start
                case {"type": "ByteFallback" | "Fuse"}:
                    pass
                case _:
                    return None
        return cls(tokenizer, replaced, stripped) if any(step["type"] == "ByteFallback" for step in steps) else None

    def __call__(self, ids: Iterable[int]) -> str:
        text = b"".join(map(self._bytes, ids)).decode("utf-8", "replace")
        spaces = len(text) - len(text.lstrip(" "))
        return text[min(spaces, self._stripped) :]

    def _bytes_of(self, token: int) -> bytes:
        written: str | None = None if token in self._special else self._tokenizer.convert_ids_to_tokens(token)
        if written is None:  # special, or beyond what the tokenizer knows
            return b""
        if byte := _BYTE.fullmatch(written):
            return bytes([int(byte[1], 16)])
        for old, new in self._replaced:
            written = written.replace(old, new)
        return written.encode()
