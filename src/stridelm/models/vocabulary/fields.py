"""What a GGUF file says of its vocabulary, checked: a damaged file gives one plain line, wherever the damage is."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from stridelm.params import InputError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""The types of tokens, as the format numbers them."""
_KINDS = range(NORMAL, BYTE + 1)
_DEFAULTS = {"llama": {"bos": 1, "eos": 2, "unknown": 0}}
"""Special tokens of files that name none, by the kind of tokenizer: llama.cpp's."""
_SPECIAL = ("bos", "eos", "eot", "eom", "unknown", "padding")


@dataclass(frozen=True, slots=True)
class VocabularyFields:
    """The fields `tokenizer.*` of a file."""

    path: Path
    """Where they come from, for messages."""
    model: str
    """The kind of tokenizer: "gpt2" (BPE over bytes), "llama" (SentencePiece)."""
    pre: str
    """llama.cpp's name for how a text is cut into words."""
    tokens: list[str]
    kinds: list[int]
    special: dict[str, int]
    """The ids of bos, eos, unknown, ..., as far as there are such tokens."""
    raw: dict[str, Any]

    def strings(self, name: str) -> list[str]:
        """A list of text without which the vocabulary cannot be read."""
        return _list(self.path, self.raw, name, str, "text")

    def scores(self) -> list[float]:
        scores = _list(self.path, self.raw, "scores", float | int, "numbers")
        _check_length(self.path, "scores", scores, len(self.tokens))
        if not all(map(math.isfinite, scores)):
            refuse(self.path, "tokenizer.ggml.scores holds a value that is not a number")
        return scores

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.raw.get(f"tokenizer.ggml.{name}", default)
        if not isinstance(value, bool):
            refuse(self.path, f"tokenizer.ggml.{name} is {value!r}, not true or false")
        return value


def refuse(path: Path, what: str) -> NoReturn:
    raise InputError(f"{path}: {what}: fetch the file again")


def special_id(path: Path, fields: dict[str, Any], name: str, tokens: int) -> int | None:
    """A special token's id, if the file names one."""
    token = fields.get(f"tokenizer.ggml.{name}_token_id")
    if token is not None and (type(token) is not int or not 0 <= token < tokens):
        refuse(path, f"tokenizer.ggml.{name}_token_id is {token}, but there are {tokens} tokens")
    return token


def read_fields(path: Path, raw: dict[str, Any]) -> VocabularyFields:
    """`raw`: the file's metadata by name."""
    model, pre = (_text(path, raw, name) for name in ("tokenizer.ggml.model", "tokenizer.ggml.pre"))
    if not model:
        refuse(path, "tokenizer.ggml.model is missing")
    tokens = _list(path, raw, "tokens", str, "text")
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]  # llama.cpp's name for them
    seen: set[str] = set()
    for token in tokens:
        if token in seen:
            refuse(path, f"the token {token!r} is in the vocabulary twice")
        seen.add(token)
    named = {name: special_id(path, raw, name, len(tokens)) for name in _SPECIAL}
    defaults = {name: index for name, index in _DEFAULTS.get(model, {}).items() if index < len(tokens)}
    special = defaults | {name: index for name, index in named.items() if index is not None}
    kinds: list[int] = _list(path, raw, "token_type", int, "whole numbers")
    _check_length(path, "token_type", kinds, len(tokens))
    for token, kind in zip(tokens, kinds, strict=True):
        if kind not in _KINDS:
            refuse(path, f"the token {token!r} has the type {kind}, which does not exist")
    return VocabularyFields(path, model, pre, tokens, kinds, special, raw)


def chat_template(path: Path, raw: dict[str, Any]) -> str | None:
    return _text(path, raw, "tokenizer.chat_template") or None


def _check_length(path: Path, name: str, items: list[Any], tokens: int) -> None:
    if len(items) != tokens:
        refuse(path, f"tokenizer.ggml.{name} has {len(items)} items for {tokens} tokens")


def _text(path: Path, raw: dict[str, Any], name: str) -> str:
    value = raw.get(name, "")
    if not isinstance(value, str):
        refuse(path, f"{name} is not text")
    return value


def _list(path: Path, raw: dict[str, Any], name: str, kind: Any, called: str) -> list[Any]:
    found = raw.get(f"tokenizer.ggml.{name}")
    if found is None:
        refuse(path, f"tokenizer.ggml.{name} is missing")
    if not isinstance(found, list) or not all(isinstance(item, kind) and not isinstance(item, bool) for item in found):
        refuse(path, f"tokenizer.ggml.{name} is not a list of {called}")
    return found
