"""Log probabilities of tokens, in OpenAI's two formats."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from stridelm.serve.grammars.vocabulary import Vocabulary
from stridelm.types import Alternatives, Stride

_MIN_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON does not have."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A token, its log probability by the model itself, and the likeliest tokens at its position."""

    token: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...]


def scored(
    tokens: Iterable[int], confidence: tuple[float, ...], alternatives: tuple[Alternatives, ...], count: int
) -> Iterator[Scored]:
    """`count`: number of alternatives to keep."""
    likeliest = alternatives or ((),) * len(confidence)
    for token, probability, others in zip(tokens, confidence, likeliest, strict=True):
        wanted = tuple((other, _log(its)) for other, its in others[:count])
        yield Scored(token, _log(probability), wanted)


def scored_stride(stride: Stride, count: int) -> list[Scored]:
    return list(scored(stride.tokens, stride.confidence, stride.alternatives, count))


def _log(probability: float) -> float:
    return max(math.log(probability), _MIN_LOGPROB) if probability > 0 else _MIN_LOGPROB


def chat_form(places: Iterable[Scored], vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """The entries of `logprobs.content`."""
    return [
        {
            **_entry(place.token, place.logprob, vocabulary),
            "top_logprobs": [_entry(token, logprob, vocabulary) for token, logprob in place.alternatives],
        }
        for place in places
    ]


def _entry(token: int, logprob: float, vocabulary: Vocabulary) -> dict[str, Any]:
    return {"token": vocabulary.text(token), "logprob": logprob, "bytes": vocabulary.bytes(token)}


@dataclass(slots=True)
class LegacyForm:
    """The columns of a completion's `logprobs`, and where in the text the next token begins."""

    vocabulary: Vocabulary
    offset: int = 0
    columns: dict[str, list[Any]] = field(default_factory=lambda: _columns())

    def first(self, token: int) -> None:
        """Add the first token of a text, which has no probability: nothing comes before it."""
        self._add(token, None, None)

    def add(self, places: Iterable[Scored]) -> None:
        for place in places:
            top = {self.vocabulary.text(place.token): place.logprob}
            for token, logprob in place.alternatives:
                text = self.vocabulary.text(token)
                # Parts of different characters have the same text: only the likeliest is listed.
                top[text] = max(logprob, top.get(text, logprob))
            self._add(place.token, place.logprob, top)

    def take(self) -> dict[str, list[Any]]:
        """The columns that were added since the last call."""
        taken, self.columns = self.columns, _columns()
        return taken

    def _add(self, token: int, logprob: float | None, top: dict[str, float] | None) -> None:
        text = self.vocabulary.text(token)
        for name, value in zip(self.columns, (text, logprob, top, self.offset), strict=True):
            self.columns[name].append(value)
        self.offset += len(text)


def _columns() -> dict[str, list[Any]]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
