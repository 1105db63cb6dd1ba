"""Small grammars, each twice: as llguidance reads it, and as a pattern over bytes that is tried out token by token."""

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import regex

from reference import Allowed
from stridelm.api import LanguageModel
from stridelm.serve.grammars.compile import Grammars, Start
from stridelm.serve.settings import ServeSettings

VOCABULARY, EOS_ID = 260, 256
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_LETTERS = [chr(byte) for byte in sorted(_PRINTABLE)] + [chr(256 + at) for at in range(256 - len(_PRINTABLE))]
BYTES = [*sorted(_PRINTABLE), *(byte for byte in range(256) if byte not in _PRINTABLE)]
"""The byte of each token of the tiny tokenizer, which has them in the order of the letters that stand for them."""
assert sorted(_LETTERS) == _LETTERS

_SPACE = rb"(?: |\n {0,16})?"
_CHARACTER = (
    rb"(?:[\x20\x21\x23-\x5b\x5d-\x7e]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    rb"|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
    rb'|\\["\\/bfnrt]|\\u00[01][0-9a-fA-F]|\\u007[fF])'
)


@dataclass(frozen=True)
class Twice:
    source: str | dict[str, Any]
    """A schema, or a grammar in Lark."""
    pattern: bytes


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["cat", "catfish", 3]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 3},
        "is_fed": {"type": "boolean"},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}

GRAMMARS = {
    "choice": Twice('start: "yes" | "no" | "yesterday"', rb"yes|no|yesterday"),
    "forced": Twice('start: "abracadabra!"', rb"abracadabra!"),
    "words": Twice("start: /[a-m]{1,6}( [a-m]{1,6}){0,7}/", rb"[a-m]{1,6}( [a-m]{1,6}){0,7}"),
    "endless": Twice('start: ("ab" | /[0-9]+/ "-")*', rb"(?:ab|[0-9]+-)*"),
    "unicode": Twice("start: /[äé日本€🙂]{1,12}/", b"(?:" + "|".join("äé日本€🙂").encode() + b"){1,12}"),
    "schema": Twice(
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "boolean"}}, "required": ["a"],
         "additionalProperties": False},
        rb'\{' + _SPACE + rb'"a"' + _SPACE + rb":" + _SPACE + rb'"' + _CHARACTER + rb'*"' + _SPACE
        + rb"(?:," + _SPACE + rb'"b"' + _SPACE + rb":" + _SPACE + rb"(?:true|false)" + _SPACE + rb")?\}",
    ),
}  # fmt: skip


def compiled(model: LanguageModel, source: str | dict[str, Any], settings: ServeSettings | None = None) -> Start:
    grammars = Grammars(model, settings or ServeSettings())
    start: Coroutine[Any, Any, Start] = (
        grammars.lark(source) if isinstance(source, str) else grammars.json_schema(source)
    )
    try:
        return asyncio.run(start)
    finally:
        grammars.close()


def naive(pattern: bytes, eos_ids: frozenset[int] = frozenset({EOS_ID})) -> Allowed:
    """Tries every byte. The tiny tokenizer's tokens are bytes, so nothing else is to be known."""
    compiled_pattern = regex.compile(pattern)

    @cache
    def of_text(text: bytes) -> np.ndarray:
        allowed = np.zeros(VOCABULARY, dtype=bool)
        for token, byte in enumerate(BYTES):
            allowed[token] = compiled_pattern.fullmatch(text + bytes([byte]), partial=True) is not None
        allowed[list(eos_ids)] = compiled_pattern.fullmatch(text) is not None
        return allowed

    def allowed(written: list[int]) -> np.ndarray:
        return of_text(bytes_of(written))

    return allowed


def bytes_of(tokens: list[int]) -> bytes:
    return bytes(BYTES[token] for token in tokens if token < len(BYTES))


def is_person(text: bytes) -> bool:
    """Whether it is JSON that keeps to PERSON."""
    person = json.loads(text)
    return (
        set(person) - {"is_fed"} == {"name", "kind", "sizes"}
        and isinstance(person["name"], str)
        and len(person["name"]) <= 6
        and person["kind"] in ("cat", "catfish", 3)
        and len(person["sizes"]) <= 3
        and all(type(size) is int and 0 <= size <= 9 for size in person["sizes"])
        and isinstance(person.get("is_fed", True), bool)
    )
