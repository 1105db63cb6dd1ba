"""Learns from known texts how likely drafts from masks are accepted: the weights of `stepper.MaskPrior`.

Shape letters: A anchors (the prompt's last token, then all tokens of the answer but the last), P places of a chain, N
looks at drafts, I inputs of a regression.
"""

import math
from collections.abc import Iterable

import numpy as np

from stridelm.stepper import MaskPrior, MaskPriors, StepPrior, Weights

EASE_WEIGHT, EASE_KEPT = 4.0, 0.5 ** (1 / 48)
"""How many observations the prior acceptance is worth; the decay per token written. As in backends/native/prior.h."""
_FIRST_EASE = 0.7
_USED, _DEPTH = 3, 4
"""Columns of looks."""
_TOKENS = 100
"""A conversion's prior stays near the package's as if so many more tokens had shown the latter."""
_EVEN = 0.25
"""Curvature of a look at a draft that stands as often as not."""
_LITTLE = 1e-3


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


def looks(scores_AP: np.ndarray, right_AP: np.ndarray) -> np.ndarray:
    """Of every chain that lies within the text, after any number of its places has been passed, the drafts before which
    all stood: N x (constant, score, ease, places used, depth, whether it stood).

    `scores`: the first choice's probability at each place, after the text's own tokens; `right`: whether it is the
    text's token. A draft before which all stood follows these tokens, however many of them were passed. Ease is as if
    two drafts were looked at per token.
    """
    written, places = right_AP.shape
    ease, eases = Ease(_FIRST_EASE), list[float]()
    for anchor in range(written):
        if anchor >= 3:  # the text is known by then
            stood = int(np.cumprod(right_AP[anchor - 3, :2]).sum())
            ease.observe(1, min(stood + 1, 2), stood)
        eases.append(log_odds(ease.value))
    eases_A, within = np.array(eases), max(0, written - places - 1)
    odds_AP = np.clip(scores_AP[:within].astype(np.float64), 1e-3, 1 - 1e-3)
    odds_AP = np.log(odds_AP / (1 - odds_AP))
    found = [np.empty((0, 6))]
    for used in range(places):
        stands_A = np.ones(within, dtype=bool)
        for place in range(used, places):
            rows = np.flatnonzero(stands_A)
            fixed = (np.full(len(rows), each) for each in (used, place - used))
            inputs = (np.ones(len(rows)), odds_AP[rows, place], eases_A[rows + used], *fixed, right_AP[rows, place])
            found.append(np.stack(inputs, axis=1))
            stands_A &= right_AP[:within, place]
    return np.concatenate(found)


def first_ease(looks_N: np.ndarray, towards: float = 0.5, weight: float = 0.0) -> float:
    """How often a draft is accepted, over all texts. `weight`: how many looks `towards` counts as."""
    stood_N = looks_N[looks_N[:, _USED] == 0, -1]
    return min(0.9, max(0.1, (float(stood_N.sum()) + weight * towards) / (len(stood_N) + weight)))


def by_score(looks_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The inputs of `MaskPrior.scored`, and whether the drafts stood."""
    return looks_N[:, :-1], looks_N[:, -1]


def by_place(looks_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same for `MaskPrior.unscored`."""
    return np.delete(looks_N[:, :-1], 1, axis=1), looks_N[:, -1]


def regression(
    inputs_NI: np.ndarray, stood_N: np.ndarray, towards: Weights | None = None, ridge: float = _LITTLE
) -> Weights:
    """Logistic, by Newton's method, with a penalty on the distance from `towards`, by default from zero. By default a
    small one, for texts that say the same of two inputs."""
    near_I = np.zeros(inputs_NI.shape[1]) if towards is None else np.array(towards)

    def loss(weights_I: np.ndarray) -> float:
        total_N = inputs_NI @ weights_I
        surprise_N = np.logaddexp(0, total_N) - stood_N * total_N
        return float(surprise_N.sum() + ridge / 2 * ((weights_I - near_I) ** 2).sum())

    weights_I = near_I
    for _ in range(12):
        chance_N = 1 / (1 + np.exp(-np.clip(inputs_NI @ weights_I, -30, 30)))
        curvature_II = (inputs_NI * (chance_N * (1 - chance_N))[:, None]).T @ inputs_NI + ridge * np.eye(len(near_I))
        step_I = np.linalg.solve(curvature_II, inputs_NI.T @ (stood_N - chance_N) - ridge * (weights_I - near_I))
        length = 1.0
        while length > _LITTLE and loss(weights_I + length * step_I) > loss(weights_I):  # where a whole step overshoots
            length /= 2
        weights_I = weights_I + length * step_I
    return tuple(weights_I.tolist())


def fit(texts: Iterable[np.ndarray], package: tuple[StepPrior, StepPrior]) -> MaskPriors:
    """A conversion's prior, from its looks at greedy texts; without any, the package's. What it differs by for greedy
    texts, in log-odds, is taken to be the same for sampled ones."""
    greedy, sampled = package
    looks_N = np.concatenate([np.empty((0, 6)), *texts])
    # A token is looked at from many anchors, which mostly say the same: it is tokens that count, not looks.
    first_N = looks_N[:, _USED] == 0
    tokens = int((first_N & (looks_N[:, _DEPTH] == 0)).sum())
    per_token = 1 / max(1, tokens)
    ridge = max(_LITTLE, _EVEN * _TOKENS * len(looks_N) * per_token)
    ease = first_ease(looks_N, greedy.ease, max(1.0, _TOKENS * int(first_N.sum()) * per_token))
    scored = regression(*by_score(looks_N), greedy.scored, ridge)
    unscored = regression(*by_place(looks_N), greedy.unscored, ridge)
    sampled_ease = logistic(log_odds(sampled.ease) + log_odds(ease) - log_odds(greedy.ease))
    return (
        MaskPrior(ease, scored, unscored),
        MaskPrior(
            sampled_ease,
            _shifted(sampled.scored, scored, greedy.scored),
            _shifted(sampled.unscored, unscored, greedy.unscored),
        ),
    )


def _shifted(sampled: Weights, fitted: Weights, greedy: Weights) -> Weights:
    return tuple(own + after - before for own, after, before in zip(sampled, fitted, greedy, strict=True))
