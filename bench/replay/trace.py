"""Traces: answers of the built-in model, and for every position of them what chains of masks would have drafted there.

A chain hangs off an anchor, a token of the text. Its place d (0 for the first mask) proposes the token d + 2 positions
behind the anchor. By the time that it is drafted from, the text has passed `used` of its places: the sequential head
reads these tokens, then its own drafts. Masks see only their own ancestors, so a shorter chain is a beginning of the
longest one, and one recording replays every choice of anchors, masks and drafts.

    text     a  b  c  d  e        anchor a, used 1: b and c are known, place 1 proposes d, place 2 what follows
    chain    a  .  0  1  2

Shape letters: A anchors (the prompt's last token, then all tokens of the answer but the last), U places used, D places
of the longest chain, N nodes: the pairs of U and D in which D is not used, row by row.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

LONGEST = 8
"""Masks of the longest chain."""
USED_N, PLACE_N = np.triu_indices(LONGEST)
"""Of every node, the places that were used and its own."""
_STEPS = 16
"""Steps of a stored score per unit of log-odds."""
_MIDDLE = 128
NO_DRAFT = 0
"""The score of a node that was not drafted, because the draft before it ends the text."""


@dataclass(frozen=True, eq=False)
class Trace:
    """One answer. Arrays are as they are stored: see `scores` for probabilities."""

    kind: str
    """The kind of its prompt."""
    name: str
    prompt_length: int
    tokens: np.ndarray
    """The prompt and the answer, uint16."""
    sure: np.ndarray
    """The model's own probability of every token of the answer, as a stored score."""
    first_tokens_AN: np.ndarray
    """The likeliest draft of every node, after the first choices before it."""
    first_scores_AN: np.ndarray
    second_tokens_AN: np.ndarray
    second_scores_AN: np.ndarray

    @property
    def first_anchor(self) -> int:
        return self.prompt_length - 1

    @property
    def written(self) -> int:
        """Tokens of the answer."""
        return len(self.tokens) - self.prompt_length

    @cached_property
    def scores(self) -> np.ndarray:
        """A x U x D: probabilities of the first choices; 0 where there is none."""
        return _spread(probabilities(self.first_scores_AN))

    @cached_property
    def first_tokens(self) -> np.ndarray:
        """A x U x D: those of the first choices."""
        return _spread(self.first_tokens_AN)

    @cached_property
    def second_tokens(self) -> np.ndarray:
        """A x U x D."""
        return _spread(self.second_tokens_AN)

    @cached_property
    def second_scores(self) -> np.ndarray:
        """A x U x D."""
        return _spread(probabilities(self.second_scores_AN))

    @cached_property
    def stood(self) -> np.ndarray:
        """A x U: how many of the first choices, in a row, are the text's own tokens."""
        right_AUD = _spread(self._is_right(self.first_tokens_AN, self.first_scores_AN))
        stood_AU = np.zeros(right_AUD.shape[:2], dtype=np.int64)
        for used in range(LONGEST):
            stood_AU[:, used] = np.cumprod(right_AUD[:, used, used:], axis=1).sum(axis=1)
        return stood_AU

    @cached_property
    def second_stood(self) -> np.ndarray:
        """A x U x D: whether the second choice is the text's own token. Of use where all before it stand."""
        return _spread(self._is_right(self.second_tokens_AN, self.second_scores_AN))

    @cached_property
    def sure_of(self) -> np.ndarray:
        return probabilities(self.sure)

    def _is_right(self, tokens_AN: np.ndarray, scores_AN: np.ndarray) -> np.ndarray:
        at_AN = self.first_anchor + 2 + np.arange(len(tokens_AN))[:, None] + PLACE_N[None, :]
        known_AN = at_AN < len(self.tokens)
        return known_AN & (scores_AN != NO_DRAFT) & (self.tokens[np.where(known_AN, at_AN, 0)] == tokens_AN)


def _spread(values_AN: np.ndarray) -> np.ndarray:
    """By places used and place: A x U x D."""
    values_AUD = np.zeros((len(values_AN), LONGEST, LONGEST), dtype=values_AN.dtype)
    values_AUD[:, USED_N, PLACE_N] = values_AN
    return values_AUD


def stored(probability: np.ndarray) -> np.ndarray:
    """Scores in a byte, evenly spaced in log-odds: what a controller asks of them is how sure they are."""
    within = np.clip(np.asarray(probability, dtype=np.float64), 1e-6, 1 - 1e-6)
    steps = np.round(_STEPS * np.log(within / (1 - within)))
    return np.clip(steps + _MIDDLE, NO_DRAFT + 1, 255).astype(np.uint8)


def probabilities(scores: np.ndarray) -> np.ndarray:
    found = 1 / (1 + np.exp(-(scores.astype(np.float64) - _MIDDLE) / _STEPS))
    return np.where(scores == NO_DRAFT, 0.0, found)


_LENGTHS = ("prompt_length",)
_NAMES = ("kind", "name")
_ARRAYS = tuple(each.name for each in fields(Trace) if each.name not in (*_LENGTHS, *_NAMES))


def save(file: Path, traces: Iterable[Trace]) -> None:
    """One array per field, over all texts: the compression sees more of them."""
    kept = list(traces)
    arrays = {name: np.concatenate([getattr(each, name) for each in kept]) for name in _ARRAYS}
    counts = np.array([[each.prompt_length, len(each.tokens)] for each in kept], dtype=np.int64)
    names = {name: np.array([getattr(each, name) for each in kept]) for name in _NAMES}
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as to:
        np.savez_compressed(to, allow_pickle=False, counts=counts, **names, **arrays)


def load(file: Path) -> list[Trace]:
    with np.load(file, allow_pickle=False) as kept:
        stored_arrays = {name: kept[name] for name in (*_NAMES, "counts", *_ARRAYS)}
    traces: list[Trace] = []
    starts = dict.fromkeys(_ARRAYS, 0)
    for row, (prompt, length) in enumerate(stored_arrays["counts"].tolist()):
        parts: dict[str, np.ndarray] = {}
        for name in _ARRAYS:
            count = length if name == "tokens" else length - prompt
            parts[name] = stored_arrays[name][starts[name] : starts[name] + count]
            starts[name] += count
        kind, text = (str(stored_arrays[name][row]) for name in _NAMES)
        traces.append(Trace(kind, text, prompt, **parts))
    return traces
