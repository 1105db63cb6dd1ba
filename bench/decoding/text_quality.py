"""How good a text of tokens is, by counting: repetition, and tokens that do not fit. What `stridelm bench` counts as
well is in stridelm.bench.quality.

Everything here is pure. A stride is what one forward brought: its first token is the model's own, the others came out
of masks at depths 1, 2, ...
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import pairwise

from stridelm.bench.quality import Share

PLAUSIBLE, IMPLAUSIBLE = 0.01, 0.001
"""The base model's probability of a token."""
IMPLAUSIBLE_RANK = 50
"""An implausible token is beyond this rank as well: where hundreds of tokens would do, none of them is likely."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What the base model thinks of every token of an answer, given all before it."""

    log_probabilities: tuple[float, ...]
    probabilities: tuple[float, ...]
    ranks: tuple[int, ...]
    """1 for its favourite."""


def total(shares: Iterable[Share]) -> Share:
    return sum(shares, Share())


def repeated_tokens(tokens: Items[int]) -> Share:
    """The tokens that equal the one before."""
    pairs = list(pairwise(tokens))
    return Share(sum(first == second for first, second in pairs), len(pairs))


def as_strides(tokens: Items[int], k: int) -> list[tuple[int, ...]]:
    """A text cut as if it had come k tokens a forward, to hold one that did against it."""
    return [tuple(tokens[start : start + k]) for start in range(0, len(tokens), k)]


def repetition_by_depth(strides: Iterable[Items[int]], k: int) -> tuple[list[Share], list[Share]]:
    """For depths 1 to k - 1: the tokens that equal the one right before, and those that their stride held already."""
    at_once, in_stride = [Share()] * (k - 1), [Share()] * (k - 1)
    for stride in strides:
        for depth in range(1, len(stride)):
            at_once[depth - 1] += Share(stride[depth] == stride[depth - 1], 1)
            in_stride[depth - 1] += Share(stride[depth] in stride[:depth], 1)
    return at_once, in_stride


def misfits(strides: Iterable[Items[int]], judged: Judged) -> tuple[Share, list[int]]:
    """Adjacent tokens of one stride whose first is plausible to the base model and whose second, the first being
    known, is not; of all whose first is plausible. Then the places of those second tokens in the answer."""
    places: list[int] = []
    plausible = start = 0
    for stride in strides:
        for place in range(start + 1, start + len(stride)):
            if judged.probabilities[place - 1] < PLAUSIBLE:
                continue
            plausible += 1
            if judged.probabilities[place] < IMPLAUSIBLE and judged.ranks[place] > IMPLAUSIBLE_RANK:
                places.append(place)
        start += len(stride)
    return Share(len(places), plausible), places
