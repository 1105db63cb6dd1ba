"""Finds texts that cannot fit by their number of characters: tokenizing megabytes takes seconds.

The bound holds for tokenizers that encode every character: BPE over bytes, or with a token for every byte. If they drop
whitespace, it does not count. Other tokenizers drop or merge what they do not know: for them there is no bound.
"""

import json
from collections.abc import Iterable
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from stridelm.models.tokenizer import TextTokenizer

_COMPOSED = 4
"""Maximum number of characters that a normalizer composes into one."""
_KEEP_ALL = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "ByteLevel", "Metaspace", "Digits", "UnicodeScripts"}
"""Normalizers and pre-tokenizers that drop nothing."""
_DROP_SPACES = {"Strip", "Whitespace", "WhitespaceSplit", "BertPreTokenizer"}
_SPACES = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"


class TextBound:
    """The bound for one tokenizer and a maximum number of tokens."""

    def __init__(self, tokenizer: TextTokenizer, max_tokens: int) -> None:
        self._max_characters: int | None = None
        self._drops_spaces = False
        backend = getattr(tokenizer, "backend_tokenizer", None)
        steps = [] if backend is None else [*_steps(backend.normalizer), *_steps(backend.pre_tokenizer)]
        vocabulary = tokenizer.get_vocab()
        if backend is not None and _knows_all_bytes(backend.model, steps, vocabulary) and all(map(_keeps_text, steps)):
            composed = 1 if backend.normalizer is None else _COMPOSED
            self._max_characters = max_tokens * composed * max(map(len, vocabulary))
            strips = any(token.lstrip or token.rstrip for token in tokenizer.added_tokens_decoder.values())
            self._drops_spaces = strips or any(step["type"] in _DROP_SPACES for step in steps)

    def excess(self, texts: Iterable[str]) -> int:
        """Number of characters of all texts together, if there are too many; else 0."""
        texts = list(texts)
        characters = sum(map(len, texts))
        if self._max_characters is None or characters <= self._max_characters:
            return 0
        if self._drops_spaces:
            characters -= sum(text.count(space) for text in texts for space in _SPACES)
        return characters if characters > self._max_characters else 0


def _steps(part: Any) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer."""
    return [] if part is None else _flat(json.loads(part.__getstate__()))


def _flat(step: dict[str, Any]) -> list[dict[str, Any]]:
    inner = step.get("normalizers") or step.get("pretokenizers") or []
    return [each for held in inner for each in _flat(held)] if step["type"] == "Sequence" else [step]


def _keeps_text(step: dict[str, Any]) -> bool:
    """Whether nothing but whitespace is dropped."""
    match step["type"]:
        case "Replace":
            return len(step["content"]) >= len(step["pattern"].get("String", step["content"] + "+"))
        case "Split" | "Punctuation":
            return step["behavior"] != "Removed"
    return step["type"] in _KEEP_ALL | _DROP_SPACES


def _knows_all_bytes(model: Any, steps: list[dict[str, Any]], vocabulary: dict[str, int]) -> bool:
    if type(model).__name__ != "BPE":
        return False
    if any(step["type"] == "ByteLevel" for step in steps):
        return all(letter in vocabulary for letter in ByteLevel.alphabet())
    return bool(model.byte_fallback) and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
