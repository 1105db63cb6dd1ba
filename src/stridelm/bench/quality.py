"""The quality of an answer's text, apart from its speed: does it equal plain decoding's, does it repeat itself, is it
right, and how likely is it for the base model."""

import math
import re
import statistics
import sys
from collections.abc import Hashable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from stridelm.bench.records import Answer, Quality, Question

if TYPE_CHECKING:
    from stridelm.api import LanguageModel

NGRAM = 4
_TIMES = 3
_SHORTEST_LOOP = 16
"""Minimum number of characters of a loop, all repetitions together: a number with many zeros is none, nor is
laughter."""
_PIECE = re.compile(r"\s*\S+|\s+$")


@dataclass(frozen=True, slots=True)
class Share:
    """`count` of `of` things."""

    count: int = 0
    of: int = 0

    def __add__(self, other: "Share") -> "Share":
        return Share(self.count + other.count, self.of + other.of)

    @property
    def share(self) -> float:
        return self.count / self.of if self.of else 0.0

    def entry(self) -> dict[str, float]:
        return {"count": self.count, "of": self.of, "share": round(self.share, 5)}


def judge(question: Question, answer: Answer, plain: Answer | None, log_likelihood: float | None) -> Quality:
    """`plain` is plain decoding's answer to the same question, if there is one to compare with. Texts are compared by
    tokens or, if one of the two has no tokens, by words with the space before them."""
    by_tokens = bool(answer.tokens) and (plain is None or bool(plain.tokens))
    own = answer.tokens if by_tokens else _words(answer.text)
    identical = departs_at = agreed = None
    if plain is not None:
        other = plain.tokens if by_tokens else _words(plain.text)
        identical, agreed = own == other, agreement(other, own)
        departs_at = None if identical else common(other, own)
    return Quality(
        identical=identical,
        departs_at=departs_at,
        agreement=agreed,
        log_likelihood=log_likelihood,
        repetition=repeated_ngrams(answer.tokens or _words(answer.text)).share,
        loops=loops(answer.text),
        right=None if question.checker is None else question.checker(answer.text),
    )


def common(plain: Items[object], other: Items[object]) -> int:
    """The length of the common prefix of two texts, in tokens."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(plain, other, strict=False)))


def agreement(plain: Items[object], other: Items[object]) -> float:
    """The share of the plain answer before the first token that differs."""
    return common(plain, other) / len(plain) if plain else 1.0


def repeated_ngrams(tokens: Items[Hashable], size: int = NGRAM) -> Share:
    """The share of n-grams that occurred before in the same text."""
    ngrams = [tuple(tokens[start : start + size]) for start in range(len(tokens) - size + 1)]
    return Share(len(ngrams) - len(set(ngrams)), len(ngrams))


def loops(text: str) -> bool:
    """Whether at least the last third of the text repeats one thing, three times or more.

    Compared letter by letter, so that it does not matter where the text is cut off. `2, 3, 4` and lists of different
    entries are no loops, because each repetition differs; nor is a list of equal entries with other text after it.
    """
    # The last repetition may lack its full stop and the space after it.
    text = " ".join(text.split()).rstrip(".!?… ")
    least = max(_SHORTEST_LOOP, len(text) / 3)
    backwards = text[::-1]
    for period in range(1, (len(text) + 2) // _TIMES + 1):
        if period + common(backwards, backwards[period:]) >= max(least, _TIMES * period - 2):
            return True
    return False


def mean_log_likelihood(model: "LanguageModel", prompt_tokens: Items[int], tokens: Items[int]) -> float | None:
    """The model's mean log-probability of an answer's tokens, given the prompt; None if there are no tokens.

    The engine must have no other sequences. The text is cached afterwards: call `model.forget()` before timing.
    """
    if not tokens:
        return None
    scored = model.engine.strides_of(model.scoring([*prompt_tokens, *tokens]))
    probabilities = [each for stride in scored for each in stride.confidence]
    # A probability of 0 has no logarithm: the smallest float stands for it.
    return statistics.fmean(math.log(max(each, sys.float_info.min)) for each in probabilities[-len(tokens) :])


def _words(text: str) -> tuple[str, ...]:
    """The words, each with the space before it, so that together they are the whole text."""
    return tuple(_PIECE.findall(text))
