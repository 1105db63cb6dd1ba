"""What masks are worth that a step leaves behind: average-reward dynamic programming over the places that are left.

The state between two steps is a chain: its masks, and how many of their places the text has passed; or no chain. At an
ease each place has one probability of acceptance. A step takes the choice with the largest

    expected tokens - pace x milliseconds + expected worth of the chain that is left then

and the pace is the one at which having no chain is worth nothing: the tokens per millisecond of the best policy for a
text of this ease. For a text whose drafts are accepted with a constant probability that is the true optimum.
"""

import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.replay.prior import Prior
from bench.replay.times import StepTimes
from bench.replay.trace import LONGEST
from stridelm.decode.fit_prior import log_odds

EASES = (0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.88, 0.94)
"""Values of ease at which chains are valued; between them, straight lines in log-odds."""
MASK_COUNTS = (1, 2, 3, 4, 6, 8)
MOST_DRAFTS = 4
_ROUNDS, _CONVERGED = 60, 1e-3


@dataclass(frozen=True, slots=True)
class Option:
    """Rows of a step: drafts, the place that masks hang off, if any, and their number."""

    drafts: int
    anchor: int = 0
    masks: int = 0

    def leaves(self, stood: int, used: int, chain: int) -> tuple[int, int]:
        """Places used and masks of the chain that is left when so many drafts stood; (0, 0) for none."""
        if self.masks and self.anchor <= stood:
            used, chain = stood - self.anchor, self.masks
        else:
            used += stood + 1
        return (used, chain) if used < chain else (0, 0)


@lru_cache
def options_of(drafts: int, mask_counts: tuple[int, ...] = MASK_COUNTS) -> tuple[Option, ...]:
    """All choices with exactly so many drafts: no masks, or some off one of the rows."""
    return Option(drafts), *(Option(drafts, place, masks) for place in range(drafts + 1) for masks in mask_counts)


def ends(reached: list[float]) -> list[float]:
    """From the probabilities that at least so many drafts stand, those that exactly so many do."""
    return [here - after for here, after in zip(reached, [*reached[1:], 0.0], strict=True)]


@dataclass(frozen=True)
class Worth:
    """By ease, on the grid."""

    eases: tuple[float, ...]
    tokens_EUM: np.ndarray
    """[ease][places used][masks]; 0 for no chain."""
    pace_E: np.ndarray
    """Tokens per millisecond."""

    def at(self, ease: float) -> tuple[list[list[float]], float]:
        grid, value = [log_odds(each) for each in self.eases], log_odds(ease)
        high = min(max(1, sum(each < value for each in grid)), len(grid) - 1)
        share = min(max(0.0, (value - grid[high - 1]) / (grid[high] - grid[high - 1])), 1.0)
        tokens_UM = (1 - share) * self.tokens_EUM[high - 1] + share * self.tokens_EUM[high]
        return tokens_UM.tolist(), float((1 - share) * self.pace_E[high - 1] + share * self.pace_E[high])


def solve(prior: Prior, times: StepTimes, mask_counts: tuple[int, ...] = MASK_COUNTS) -> Worth:
    solved = [_Solver(prior, times, ease, mask_counts).solve() for ease in EASES]
    return Worth(EASES, np.array([tokens for tokens, _ in solved]), np.array([pace for _, pace in solved]))


class _Solver:
    def __init__(self, prior: Prior, times: StepTimes, ease: float, mask_counts: tuple[int, ...]) -> None:
        self.times, self.mask_counts = times, mask_counts
        self.reached: list[list[float]] = []
        """[places used][drafts]: the probability that all of these stand."""
        for used in range(LONGEST):
            paths = [1.0]
            for depth in range(min(MOST_DRAFTS, LONGEST - used)):
                paths.append(paths[-1] * prior.of_place(ease, used, depth))
            self.reached.append(paths)

    def solve(self) -> tuple[np.ndarray, float]:
        worth_UM, pace = np.zeros((LONGEST, LONGEST + 1)), 1 / self.times(1)
        for _ in range(_ROUNDS):
            pace = self._pace(worth_UM, pace)
            renewed_UM = np.zeros_like(worth_UM)
            for used in range(LONGEST):
                for chain in range(used + 1, LONGEST + 1):
                    renewed_UM[used, chain] = max(0.0, self._best(used, chain, worth_UM, pace))
            change, worth_UM = float(np.abs(renewed_UM - worth_UM).max()), renewed_UM
            if change < _CONVERGED:
                break
        return worth_UM, pace

    def _pace(self, worth_UM: np.ndarray, pace: float) -> float:
        """At which the best step without a chain is worth just its time."""
        for _ in range(20):
            worth, time = max(
                (1 + worth_UM[option.leaves(0, 0, 0)] - pace * (taken := self._time(option)), taken)
                for option in options_of(0, self.mask_counts)
            )
            pace += worth / time
            if abs(worth) < 1e-9:
                break
        return pace

    def _time(self, option: Option) -> float:
        """Drafts are drafted as deep as they are run."""
        return self.times(1 + option.drafts, option.masks, option.drafts)

    def _best(self, used: int, chain: int, worth_UM: np.ndarray, pace: float) -> float:
        best = -np.inf
        for drafts in range(min(MOST_DRAFTS, chain - used) + 1):
            reached = self.reached[used][: drafts + 1]
            tokens, shares = sum(reached), ends(reached)
            for option in options_of(drafts, self.mask_counts):
                left = sum(share * worth_UM[option.leaves(stood, used, chain)] for stood, share in enumerate(shares))
                best = max(best, tokens + left - pace * self._time(option))
        return best
