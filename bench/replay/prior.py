"""What a controller knows before the first token of a text: learned from traces of other texts, for one machine's times.

1. Calibration: how likely a first choice is accepted, by its score, by how many places of its chain the text has passed,
   by its depth, and by how easy the text has been (`Ease`).
2. What a chain that a step leaves behind is worth, by its places used and its masks, at a few values of ease: tokens
   beyond those that plain steps write in the same time. By value iteration over the recorded chains.

    worth(chain) = mean over positions of  max over choices of
                   E[tokens + worth(chain that is left then)] - pace x seconds,     worth(no chain) = 0

   which also yields the pace, the tokens per millisecond that this ease allows.

Shape letters: I samples, S drafts that stand (0 to the number of drafts), C choices, U places used, M masks, E values
of ease.
"""

import math
import sys
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.replay.times import StepTimes
from bench.replay.trace import LONGEST, Trace

FIRST_EASE, EASE_WEIGHT, EASE_KEPT = 0.7, 6.0, 0.5 ** (1 / 24)
"""The prior acceptance of a draft; how many observations it is worth; the decay per token written."""
EASES = (0.3, 0.5, 0.65, 0.75, 0.85, 0.93)
"""Values of ease at which chains are valued; between them, straight lines."""
MASK_COUNTS = (1, 2, 3, 4, 5, 6, 8)
ROUNDS = 30
_SAMPLES = 1500
_CONVERGED = 2e-3


def log_odds(probability: float) -> float:
    within = min(max(probability, 1e-3), 1 - 1e-3)
    return math.log(within / (1 - within))


class Ease:
    """How often drafts of this text were accepted lately, if all before them were. What was seen is forgotten with
    every token, seen again or not: so a text that rests is looked at again, the sooner the nearer it is to paying."""

    def __init__(self, first: float = FIRST_EASE, weight: float = EASE_WEIGHT, kept: float = EASE_KEPT) -> None:
        self.first, self.weight, self._kept = first, weight, kept
        self.seen = self.stood = 0.0

    @property
    def value(self) -> float:
        return (self.stood + self.first * self.weight) / (self.seen + self.weight)

    def observe(self, emitted: int, seen: int, stood: int) -> None:
        keep = self._kept**emitted
        self.seen, self.stood = keep * self.seen + seen, keep * self.stood + stood


@dataclass(frozen=True, slots=True)
class Option:
    """Rows of a step: drafts, places that masks hang off, masks."""

    drafts: int
    anchors: tuple[int, ...]
    masks: int

    def leaves(self, stood: int, used: int, chain: int) -> tuple[int, int]:
        """Places used and masks of the chain that is left, when so many drafts stood; (0, 0) if none is."""
        nearest = max((place for place in self.anchors if place <= stood), default=None)
        used, chain = (used + stood + 1, chain) if nearest is None else (stood - nearest, self.masks)
        return (used, chain) if used < chain else (0, 0)


@lru_cache
def options_of(most: int, mask_counts: tuple[int, ...] = MASK_COUNTS, anchor_sets: str = "any") -> tuple[Option, ...]:
    """All choices with exactly so many drafts: no masks, masks off one row, off the last few, off all."""
    places = range(most + 1)
    sets = {
        "any": [(place,) for place in places] + [tuple(range(first, most + 1)) for first in range(most)],
        "one": [(place,) for place in places],
        "root": [(0,)],
        "last": [(most,)],
        "all": [tuple(places)],
    }[anchor_sets]
    return (Option(most, (), 0), *(Option(most, anchors, masks) for anchors in sets for masks in mask_counts))


@dataclass(frozen=True)
class Prior:
    """What is shipped."""

    weights: tuple[float, ...]
    """Of the calibration: constant, score, ease, places used, depth."""
    worth_EUM: np.ndarray
    pace_E: np.ndarray
    """Tokens per millisecond."""
    first_ease: float = FIRST_EASE
    eases: tuple[float, ...] = EASES
    _grid: list[float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_grid", [log_odds(each) for each in self.eases])

    def chance(self, score: float, ease: float, used: int, depth: int) -> float:
        constant, by_score, by_ease, by_used, by_depth = self.weights
        total = constant + by_score * log_odds(score) + by_ease * log_odds(ease) + by_used * used + by_depth * depth
        return 1 / (1 + math.exp(-total))

    def at(self, ease: float) -> tuple[np.ndarray, float]:
        """Worth by places used and masks, and the pace."""
        grid, value = self._grid, log_odds(ease)
        high = min(max(1, int(np.searchsorted(grid, value))), len(grid) - 1)
        share = min(max(0.0, (value - grid[high - 1]) / (grid[high] - grid[high - 1])), 1.0)
        low = high - 1
        worth_UM = (1 - share) * self.worth_EUM[low] + share * self.worth_EUM[high]
        return worth_UM, float((1 - share) * self.pace_E[low] + share * self.pace_E[high])


@dataclass(frozen=True)
class Samples:
    """Positions of recorded texts: for a chain off each, with U places used."""

    logits_IUD: np.ndarray
    """Log-odds of the scores."""
    stood_IU: np.ndarray
    ease_I: np.ndarray

    @classmethod
    def of(cls, traces: Iterable[Trace], first_ease: float = FIRST_EASE) -> "Samples":
        parts = [_samples(trace, first_ease) for trace in traces]
        return cls(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def _samples(trace: Trace, first_ease: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of anchors whose whole chain lies within the text. Ease as if some drafts were looked at per token."""
    ease, eases = Ease(first_ease), list[float]()
    for anchor in range(trace.written):
        if anchor >= 3:
            stood = min(int(trace.stood_AU[anchor - 3, 0]), 2)
            ease.observe(1, min(stood + 1, 2), stood)
        eases.append(ease.value)
    kept = slice(0, max(0, trace.written - LONGEST - 1))
    within = np.clip(trace.scores_AUD[kept], 1e-3, 1 - 1e-3)
    return np.log(within / (1 - within)), trace.stood_AU[kept], np.array(eases)[kept]


def calibrate(samples: Samples) -> tuple[float, ...]:
    """Logistic regression over all drafts that were looked at: those before which all stood."""
    rows: list[np.ndarray] = []
    ease_I = np.array([log_odds(each) for each in samples.ease_I])
    for used in range(LONGEST):
        for depth in range(LONGEST - used):
            seen_I = samples.stood_IU[:, used] >= depth
            count = int(seen_I.sum())
            columns = [np.ones(count), samples.logits_IUD[seen_I, used, used + depth], ease_I[seen_I]]
            columns += [np.full(count, used), np.full(count, depth), samples.stood_IU[seen_I, used] > depth]
            rows.append(np.stack(columns, axis=1))
    table = np.concatenate(rows).astype(np.float64)
    inputs, stood = table[:, :-1], table[:, -1]
    weights = np.zeros(inputs.shape[1])
    for _ in range(12):  # Newton's method
        chance = 1 / (1 + np.exp(-inputs @ weights))
        curvature = (inputs * (chance * (1 - chance))[:, None]).T @ inputs + 1e-6 * np.eye(len(weights))
        weights += np.linalg.solve(curvature, inputs.T @ (stood - chance))
    return tuple(weights.tolist())


def learn(
    traces: Items[Trace],
    times: StepTimes,
    *,
    mask_counts: tuple[int, ...] = MASK_COUNTS,
    anchor_sets: str = "any",
    most_drafts: int = 6,
    floor: float = 0.1,
) -> Prior:
    samples = Samples.of(traces)
    first = float((samples.stood_IU[:, 0] >= 1).mean())
    weights = calibrate(samples)
    ease_I = np.array([log_odds(each) for each in samples.ease_I])
    grid = np.array([log_odds(each) for each in EASES])
    worth: list[np.ndarray] = []
    paces: list[float] = []
    iteration = _Iteration(samples, weights, times, mask_counts, anchor_sets, most_drafts, floor)
    for number, centre in enumerate(grid):
        width = np.diff(grid)[max(0, number - 1) : number + 1].mean()
        distance_I = np.abs(ease_I - centre) / width
        if number == 0:
            distance_I = np.maximum(0, ease_I - centre) / width
        if number == len(grid) - 1:
            distance_I = np.maximum(0, centre - ease_I) / width
        weight_I = np.maximum(0.0, 1 - distance_I)
        if weight_I.sum() < 50:  # too few texts are like this: the nearest ones
            nearest = np.argsort(distance_I, kind="stable")[:400]
            weight_I = np.zeros(len(distance_I))
            weight_I[nearest] = 1.0
        worth_UM, pace = iteration.run(weight_I)
        worth.append(worth_UM)
        paces.append(pace)
    return Prior(weights, np.array(worth), np.array(paces), min(0.85, max(0.5, first)))


class _Iteration:
    def __init__(self, samples: Samples, weights: tuple[float, ...], times: StepTimes, mask_counts: tuple[int, ...], anchor_sets: str, most_drafts: int, floor: float) -> None:  # fmt: skip
        self.times, self.most, self.floor = times, most_drafts, floor
        self.mask_counts, self.anchor_sets = mask_counts, anchor_sets
        self.samples = samples
        constant, by_score, by_ease, by_used, by_depth = weights
        ease_I = np.array([log_odds(each) for each in samples.ease_I])
        self.paths_IUJ = np.zeros((len(ease_I), LONGEST, LONGEST))
        """The probability that so many drafts and one more stand."""
        for used in range(LONGEST):
            depths = np.arange(LONGEST - used)
            total = constant + by_score * samples.logits_IUD[:, used, used:] + (by_ease * ease_I + by_used * used)[:, None]
            chance = 1 / (1 + np.exp(-(total + by_depth * depths)))
            self.paths_IUJ[:, used, : LONGEST - used] = np.cumprod(chance, axis=1)

    def run(self, weight_I: np.ndarray) -> tuple[np.ndarray, float]:
        kept = np.flatnonzero(weight_I)
        if len(kept) > _SAMPLES:
            kept = kept[:: len(kept) // _SAMPLES + 1]
        share_I = weight_I[kept] / weight_I[kept].sum()
        worth_UM, pace = np.zeros((LONGEST + 1, LONGEST + 1)), 1 / self.times(1)
        for _ in range(ROUNDS):
            before = worth_UM
            worth_UM, pace = self._round(kept, share_I, worth_UM, pace)
            if np.abs(worth_UM - before).max() < _CONVERGED:
                break
        return worth_UM, pace

    def _round(self, kept: np.ndarray, share_I: np.ndarray, worth_UM: np.ndarray, pace: float) -> tuple[np.ndarray, float]:
        # From no chain: the pace is the one at which its best choice is worth nothing beyond the time that it takes.
        bare = options_of(0, self.mask_counts, self.anchor_sets)
        for _ in range(20):
            gains = [1 + worth_UM[option.leaves(0, 0, 0)] - pace * self._time(option, 0) for option in bare]
            best = max(range(len(bare)), key=gains.__getitem__)
            pace += gains[best] / self._time(bare[best], 0)
            if abs(gains[best]) < 1e-9:
                break
        renewed = np.zeros_like(worth_UM)
        for used in range(LONGEST):
            for chain in range(used + 1, LONGEST + 1):
                renewed[used, chain] = max(0.0, self._value(kept, share_I, used, chain, worth_UM, pace))
        return renewed, pace

    def _time(self, option: Option, levels: int) -> float:
        return self.times(1 + option.drafts, option.masks * len(option.anchors), levels)

    def _value(self, kept: np.ndarray, share_I: np.ndarray, used: int, chain: int, worth_UM: np.ndarray, pace: float) -> float:
        """The mean over positions of what the best choice there really led to."""
        depth = min(chain - used, self.most)
        path_IJ = self.paths_IUJ[kept, used, :depth]
        drafted_I = np.minimum(depth, (path_IJ >= self.floor).sum(axis=1) + 1)
        """Depths that were drafted: up to the first one that is too unlikely."""
        stood_I = np.minimum(self.samples.stood_IU[kept, used], chain - used)
        best_I = np.full(len(kept), -np.inf)
        real_I = np.zeros(len(kept))
        for drafts in range(depth + 1):
            reached_IS = np.concatenate([np.ones((len(kept), 1)), path_IJ[:, :drafts]], axis=1)
            ends_IS = reached_IS.copy()
            ends_IS[:, :-1] -= reached_IS[:, 1:]
            options = options_of(drafts, self.mask_counts, self.anchor_sets)
            after_SC = np.array([
                [stood + 1 + worth_UM[option.leaves(stood, used, chain)] for option in options]
                for stood in range(drafts + 1)
            ])  # fmt: skip
            seconds_C = np.array([self._time(option, 0) for option in options])
            worth_IC = ends_IS @ after_SC - pace * seconds_C
            top_I = worth_IC.argmax(axis=1)
            top_worth_I = worth_IC[np.arange(len(kept)), top_I]
            better_I = (top_worth_I > best_I) & (drafted_I >= drafts)
            really_I = after_SC[np.minimum(stood_I, drafts), top_I] - pace * seconds_C[top_I]
            best_I = np.where(better_I, top_worth_I, best_I)
            real_I = np.where(better_I, really_I, real_I)
        return float(share_I @ (real_I - pace * self.times.level * drafted_I))
