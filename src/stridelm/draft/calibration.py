"""How often drafts are accepted, learned while decoding: makes the scores of different drafters comparable.

Each drafter has a curve from its scores to acceptance, on the scale of log-odds, where scores near 0 and near 1 are
spread out. The curve has evenly spaced knots; a node that was looked at counts at the two knots around its score, by
distance. Each knot is a Beta posterior whose prior mean is its own score. So a drafter's scores are trusted until the
text shows otherwise.

A node's depth is no part of the curve: at equal score it made no difference. On 1,699 looked-at nodes of the built-in
model's masks, greedy, acceptance less mean score was .06 .07 .02 .05 -.01 .08 at depths 1 to 6; correcting the odds by
depth made the log-loss .511 where the curve alone has .510 and the bare score .516.
"""

import math
from collections.abc import Collection
from collections.abc import Sequence as Items
from dataclasses import dataclass

from stridelm.types import ROOT, DraftTree
from stridelm.verify import follow

LEAST, MOST = 0.001, 0.999
"""Estimates stay between these: nothing is certain."""
_END = math.log(MOST / LEAST)
_KNOTS = 11
_GAP = 2 * _END / (_KNOTS - 1)
_POSITIONS = [-_END + knot * _GAP for knot in range(_KNOTS)]
_STRENGTH = 10.0
"""Number of observations that a knot's prior is worth."""
_KEPT = 0.5 ** (1 / 300)
"""Decay per node that was looked at: half of the past is forgotten after 300 nodes, about a hundred tokens, so that the
curve follows a new text."""


def _probability(log_odds: float) -> float:
    return 1 / (1 + math.exp(-log_odds))


def _log_odds(probability: float) -> float:
    within = _within(probability)
    return math.log(within / (1 - within))


def _within(probability: float) -> float:
    # In this order NaN, from a drafter with damaged weights, becomes LEAST.
    return min(max(LEAST, probability), MOST)


class _Curve:
    """One drafter's acceptance by score. Monotone, so that ranking by estimate keeps the drafter's own order."""

    def __init__(self) -> None:
        self._looked_at = [0.0] * _KNOTS
        self._accepted = [0.0] * _KNOTS
        self._values: list[float] | None = None
        """Per knot, the log-odds of acceptance; computed on demand, once for all sequences of a step."""

    def __call__(self, score: float) -> float:
        values = self._values = self._values or self._fit()
        knot, share = _place(score)
        return _probability(values[knot] + share * (values[knot + 1] - values[knot]))

    def _fit(self) -> list[float]:
        means = [
            (_STRENGTH * _probability(at) + accepted) / (_STRENGTH + looked_at)
            for at, accepted, looked_at in zip(_POSITIONS, self._accepted, self._looked_at, strict=True)
        ]
        # If neighbours contradict each other, observations count and the prior hardly does.
        return [_log_odds(mean) for mean in rising(means, [1 + looked_at for looked_at in self._looked_at])]

    def observe(self, looks: list[tuple[float, bool]]) -> None:
        """Scores of looked-at nodes, and whether each was accepted."""
        kept = _KEPT ** len(looks)
        self._looked_at = [count * kept for count in self._looked_at]
        self._accepted = [count * kept for count in self._accepted]
        for score, stood in looks:
            knot, share = _place(score)
            for index, weight in ((knot, 1 - share), (knot + 1, share)):
                self._looked_at[index] += weight
                self._accepted[index] += weight * stood
        self._values = None


def _place(score: float) -> tuple[int, float]:
    """The knot below a score, and the score's relative distance to the next one: 0 to 1."""
    at = (_log_odds(score) + _END) / _GAP
    knot = min(int(at), _KNOTS - 2)
    return knot, at - knot


def rising(means: list[float], weights: list[float]) -> list[float]:
    """Isotonic regression: decreasing neighbours are pooled by weight until none is left (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for mean, weight in zip(means, weights, strict=True):
        count = 1
        while pools and pools[-1][0] >= mean:
            before, before_weight, before_count = pools.pop()
            mean = (before * before_weight + mean * weight) / (before_weight + weight)
            weight, count = weight + before_weight, count + before_count
        pools.append((mean, weight, count))
    return [mean for mean, _, count in pools for _ in range(count)]


@dataclass(slots=True)
class _Level:
    """Counts of the nodes of one depth of one drafter's trees, over all time."""

    drafted: int = 0
    looked_at: int = 0
    accepted: int = 0


class Calibration:
    """Running acceptance by drafter. Decays per observation: a drafter that is not asked keeps its estimates."""

    def __init__(self) -> None:
        self._curves: dict[str, _Curve] = {}
        self._levels: dict[str, list[_Level]] = {}

    def accepted(self, source: str, score: float, depth: int) -> float:
        """The probability that such a node is accepted if its parent is. `depth` is 1 for a tree's first level; see
        above for why it is not used."""
        curve = self._curves.get(source)
        return _within(score) if curve is None else curve(score)

    def observe(self, tree: DraftTree, accepted: Collection[int]) -> None:
        """Learn from a tree with its drafters' own scores (not a merged one: those are estimates already).

        Nodes were looked at if their parent is accepted or ROOT; of these, all that are not accepted were rejected.
        """
        self._learn(tree, frozenset(accepted), deepest=len(tree))

    def observe_text(self, tree: DraftTree, tokens: Items[int]) -> None:
        """Learn from a tree by the tokens that a step emitted, whether its nodes were run or not: so neither pruning
        nor merging favours a drafter. Nodes after the last token cannot be judged yet."""
        self._learn(tree, frozenset(follow(tree, tokens)), deepest=len(tokens))

    def _learn(self, tree: DraftTree, accepted: frozenset[int], deepest: int) -> None:
        looks: dict[str, list[tuple[float, bool]]] = {}
        for node, (parent, depth) in enumerate(zip(tree.parents, tree.depths, strict=True)):
            level = self._level(tree.sources[node], depth)
            level.drafted += 1
            if depth > deepest or (parent != ROOT and parent not in accepted):
                continue
            stood = node in accepted
            level.looked_at += 1
            level.accepted += stood
            looks.setdefault(tree.sources[node], []).append((tree.scores[node], stood))
        for source, scores in looks.items():
            self._curves.setdefault(source, _Curve()).observe(scores)

    def _level(self, source: str, depth: int) -> _Level:
        levels = self._levels.setdefault(source, [])
        while len(levels) < depth:
            levels.append(_Level())
        return levels[depth - 1]

    def snapshot(self) -> dict[str, dict[str, list[int]]]:
        """Per drafter and depth: nodes drafted, looked at and accepted so far. Can be written as JSON."""
        return {
            source: {
                "drafted": [level.drafted for level in levels],
                "looked_at": [level.looked_at for level in levels],
                "accepted": [level.accepted for level in levels],
            }
            for source, levels in self._levels.items()
        }
