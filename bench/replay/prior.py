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

EASE_WEIGHT, EASE_KEPT = 4.0, 0.5 ** (1 / 48)
"""How many observations the prior acceptance is worth; the decay per token written."""
_ENOUGH = 50
"""Observations that a regression needs."""
LONG_MATCH = 8
"""Matches of look-up are not told apart beyond this length."""


def log_odds(probability: float) -> float:
    within = min(max(probability, 1e-3), 1 - 1e-3)
    return math.log(within / (1 - within))


def logistic(total: float) -> float:
    return 1 / (1 + math.exp(-total))


class Ease:
    """How often drafts of this text were accepted lately, if all before them were. What was seen is forgotten with
    every token, whether more is seen or not: so a text that rests is looked at again."""

    def __init__(self, first: float, weight: float = EASE_WEIGHT, kept: float = EASE_KEPT) -> None:
        self.first, self.weight, self._kept = first, weight, kept
        self.seen = self.stood = 0.0

    @property
    def value(self) -> float:
        return (self.stood + self.first * self.weight) / (self.seen + self.weight)

    def observe(self, emitted: int, seen: int, stood: int) -> None:
        keep = self._kept**emitted
        self.seen, self.stood = keep * self.seen + seen, keep * self.stood + stood


@dataclass(frozen=True)
class Prior:
    """Weights of the regressions, on log-odds."""

    first_ease: float
    """How often a draft is accepted, over all texts."""
    scored: tuple[float, ...]
    """A constant, then per unit of the score's log-odds, of the ease's, per place used, per depth."""
    unscored: tuple[float, ...]
    """The same without the score."""
    found: tuple[float, ...]
    """Of look-up: a constant, per logarithm of the match's length, and for a long match."""
    agreed: tuple[float, ...]
    """Of a token that both propose: a constant, per log-odds of the chain's probability, and of look-up's."""
    chain_against: tuple[float, ...]
    """The same of the chain's token where look-up proposes another."""
    found_against: tuple[float, ...]
    """The same of look-up's."""

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
    seen = np.array([each for trace in traces for each in _looks(trace)])
    stood_N = seen[:, -1]
    found = np.array([each for trace in traces for each in _matches(trace)])
    first = float(stood_N[seen[:, 3] == 0].mean())
    alone = Prior(
        min(0.9, max(0.1, first)),
        _regression(seen[:, :-1], stood_N),
        _regression(np.delete(seen[:, :-1], 1, axis=1), stood_N),
        _regression(found[:, :-1], found[:, -1]) if len(found) else (log_odds(0.5), 0.0, 0.0),
        agreed=(0.0, 1.0, 0.0),
        chain_against=(0.0, 1.0, 0.0),
        found_against=(0.0, 0.0, 1.0),
    )
    pairs = [each for trace in traces for each in _pairs(trace, alone)]
    fitted: dict[str, tuple[float, ...]] = {}
    for name in ("agreed", "chain_against", "found_against"):
        own = np.array([row for kind, row in pairs if kind == name])
        if len(own) >= _ENOUGH:
            fitted[name] = _regression(own[:, :-1], own[:, -1])
    return replace(alone, **fitted)


def _looks(trace: Trace) -> Iterator[tuple[float, ...]]:
    """Of every chain that lies within the text, the drafts before which all stood: constant, score, ease, places used,
    depth, and whether it stood. Ease as if two drafts were looked at per token."""
    ease, eases = Ease(0.7), list[float]()
    for anchor in range(trace.written):
        if anchor >= 3:  # the text is known by then
            stood = min(int(trace.stood[anchor - 3, 0]), 2)
            ease.observe(1, min(stood + 1, 2), stood)
        eases.append(log_odds(ease.value))
    for anchor in range(max(0, trace.written - LONGEST - 1)):
        for used in range(LONGEST):
            stood = int(trace.stood[anchor, used])
            for depth in range(min(stood + 1, LONGEST - used)):
                score = log_odds(float(trace.scores[anchor, used, used + depth]))
                yield 1.0, score, eases[min(anchor + used, trace.written - 1)], used, depth, stood > depth


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
                chain = log_odds(prior.of_score(score, prior.first_ease, used, depth))
                row = 1.0, chain, log_odds(prior.of_match(matched, depth))
                if depth < agreeing:
                    yield "agreed", (*row, chain_stood > depth)
                else:
                    yield "chain_against", (*row, chain_stood > depth)
                    yield "found_against", (*row, found_stood > depth)
                    break


def _regression(inputs: np.ndarray, stood_N: np.ndarray) -> tuple[float, ...]:
    """Logistic, by Newton's method; a little ridge, for texts that say the same of two inputs."""
    weights = np.zeros(inputs.shape[1])
    for _ in range(12):
        chance_N = 1 / (1 + np.exp(-np.clip(inputs @ weights, -30, 30)))
        curvature = (inputs * (chance_N * (1 - chance_N))[:, None]).T @ inputs + 1e-3 * np.eye(len(weights))
        weights += np.linalg.solve(curvature, inputs.T @ (stood_N - chance_N) - 1e-3 * weights)
    return tuple(weights.tolist())


def split(traces: Items[Trace]) -> Iterable[tuple[list[Trace], list[int]]]:
    """For each half: the other half's traces, to learn from, and the numbers of its own."""
    for half in (0, 1):
        yield [each for number, each in enumerate(traces) if number % 2 != half], list(range(half, len(traces), 2))
