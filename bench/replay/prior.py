"""What a controller knows before the first token of a text: a dozen numbers, learned from traces of other texts.

- How likely a draft is accepted if all before it were: by its score, by how easy the text has been lately (`Ease`), by
  how many places of its chain the text has passed, and by its depth. Logistic regressions: with the score for drafts
  that were made, without it for chains that do not exist yet, and one for what look-up finds.
- What it means that the chain and look-up propose the same token, or different ones.
- From these and a machine's step times, what a chain is worth that a step leaves behind (`Worth`): tokens beyond those
  that would be written in the same time at the pace of this ease.

Shape letters: N observations, U places used, M masks of a chain, E values of ease.
"""

import math
import sys
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.replay.play import View, looked_up
from bench.replay.trace import LONGEST, Trace
from stridelm.decode.draft_prior import DraftPrior
from stridelm.decode.fit_prior import by_place, by_score, first_ease, log_odds, logistic, looks, regression

_ENOUGH = 50
"""Observations that a regression needs."""
LONG_MATCH = 8
"""Matches of look-up are not told apart beyond this length."""


@dataclass(frozen=True)
class Prior(DraftPrior):
    """The package's, and what follows from it: as prior.h of the native backend computes it."""

    def of_score(self, score: float, ease: float, used: int, depth: int) -> float:
        constant, by_score, by_ease, by_used, by_depth = self.scored
        total = constant + by_score * log_odds(score) + by_ease * log_odds(ease) + by_used * used + by_depth * depth
        return logistic(total)

    def of_place(self, ease: float, used: int, depth: int) -> float:
        constant, by_ease, by_used, by_depth = self.unscored
        return logistic(constant + by_ease * log_odds(ease) + by_used * used + by_depth * depth)

    def of_match(self, length: int, ahead: int) -> float:
        return logistic(float(np.dot(self.found, _of_match(length, ahead))))

    def joint(self, weights: tuple[float, ...], chain: float, found: float) -> float:
        """`weights`: one of the three above."""
        return logistic(weights[0] + weights[1] * log_odds(chain) + weights[2] * log_odds(found))


def learn(traces: Items[Trace]) -> Prior:
    seen = np.concatenate([_looks(trace) for trace in traces])
    found = np.array([each for trace in traces for each in _matches(trace)])
    alone = Prior(
        first_ease(seen),
        regression(*by_score(seen)),
        regression(*by_place(seen)),
        regression(found[:, :-1], found[:, -1]) if len(found) else (log_odds(0.5), 0.0, 0.0),
        agreed=(0.0, 1.0, 0.0),
        chain_against=(0.0, 1.0, 0.0),
        found_against=(0.0, 0.0, 1.0),
    )
    pairs = [each for trace in traces for each in _pairs(trace, alone)]
    fitted: dict[str, tuple[float, ...]] = {}
    for name in ("agreed", "chain_against", "found_against"):
        own = np.array([row for kind, row in pairs if kind == name])
        if len(own) >= _ENOUGH:
            fitted[name] = regression(own[:, :-1], own[:, -1])
    return replace(alone, **fitted)


def _looks(trace: Trace) -> np.ndarray:
    """A node without drafts before it follows the text's own tokens: places and their places used are the same."""
    own = np.arange(LONGEST)
    return looks(trace.scores[:, own, own], trace.stood[:, own] > 0)


def _of_match(length: int, ahead: int) -> tuple[float, float, float]:
    """If a draft is accepted, the match is one token longer for the next one."""
    return 1.0, math.log(min(length + ahead, LONG_MATCH)), float(length >= LONG_MATCH)


def _matches(trace: Trace) -> Iterator[tuple[float, ...]]:
    for length in range(trace.prompt_length + 1, len(trace.tokens)):
        stood, matched, count = looked_up(trace, length)
        for ahead in range(min(count, stood + 1, len(trace.tokens) - length)):
            yield *_of_match(matched, ahead), stood > ahead


def _pairs(trace: Trace, prior: Prior) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Where both propose: as far as they agree and stand, and where they part. Chains of which a place or none was
    passed, as most are."""
    for length in range(trace.prompt_length + 3, len(trace.tokens)):
        found_stood, matched, count = looked_up(trace, length)
        for used in (0, 1) if count else ():
            view = View(trace, length, used, LONGEST - used)
            chain_stood = int(trace.stood[length - 2 - used - trace.first_anchor, used])
            scores = [view.score(depth) for depth in range(min(count, LONGEST - used, len(trace.tokens) - length))]
            agreeing = view.agreeing()
            for depth, score in enumerate(scores):
                if not score or min(chain_stood, found_stood) < depth:
                    break
                chain = log_odds(prior.of_score(score, prior.ease, used, depth))
                row = 1.0, chain, log_odds(prior.of_match(matched, depth))
                if depth < agreeing:
                    yield "agreed", (*row, chain_stood > depth)
                else:
                    yield "chain_against", (*row, chain_stood > depth)
                    yield "found_against", (*row, found_stood > depth)
                    break


def split(traces: Items[Trace]) -> Iterable[tuple[list[Trace], list[int]]]:
    """For each half: the other half's traces, to learn from, and the numbers of its own."""
    for half in (0, 1):
        yield [each for number, each in enumerate(traces) if number % 2 != half], list(range(half, len(traces), 2))
