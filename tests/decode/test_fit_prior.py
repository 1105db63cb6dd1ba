"""A conversion's own prior: what it learns from looks at drafts, and how near it stays to the package's."""

from dataclasses import asdict

import numpy as np
import pytest

from stridelm.decode.draft_prior import draft_priors
from stridelm.decode.fit_prior import by_place, by_score, fit, looks
from stridelm.stepper import MaskPriors, Weights

PLACES = 6


def drafted(written: int, *, sureness: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores, and whether drafts are right: as often as their scores say, but for `sureness` in log-odds."""
    random = np.random.default_rng(seed)
    odds_AP = random.normal(0.5, 1.5, (written, PLACES))
    right_AP = random.random((written, PLACES)) < 1 / (1 + np.exp(-odds_AP - sureness))
    return 1 / (1 + np.exp(-odds_AP)), right_AP


def rate(inputs: np.ndarray, weights: Weights) -> float:
    """How often these drafts stand, as these weights have it."""
    return float((1 / (1 + np.exp(-inputs @ np.array(weights)))).mean())


def numbers(priors: MaskPriors) -> np.ndarray:
    return np.concatenate([np.hstack([prior.ease, prior.scored, prior.unscored]) for prior in priors])


@pytest.mark.parametrize("sureness", [-2.0, 0.0, 2.0])
def test_predicted_rates_approach_those_that_were_seen(sureness: float) -> None:
    found = looks(*drafted(4000, sureness=sureness))
    greedy, sampled = fit([found], draft_priors())
    package = draft_priors()
    for inputs, weights, before in (
        (by_score(found)[0], greedy.scored, package[0].scored),
        (by_place(found)[0], greedy.unscored, package[0].unscored),
    ):
        seen = float(found[:, -1].mean())
        assert abs(rate(inputs, weights) - seen) < 0.02
        assert abs(rate(inputs, weights) - seen) < abs(rate(inputs, before) - seen)
    assert greedy.ease == pytest.approx(found[found[:, 3] == 0, -1].mean(), abs=0.02)
    assert (sampled.ease < package[1].ease) == (greedy.ease < package[0].ease)


def test_without_data_it_is_the_packages() -> None:
    package = draft_priors()
    for own, whole in zip(fit([], package), package, strict=True):
        for name, value in asdict(own).items():
            assert value == pytest.approx(getattr(whole, name))


def test_a_little_data_says_little() -> None:
    """Of drafts that all fail, which would make weights without a penalty infinite."""
    package = numbers(fit([], draft_priors()))
    away = []
    for written in (20, 100, 1000):
        scores, right = drafted(written)
        away.append(float(np.abs(numbers(fit([looks(scores, right & False)], draft_priors())) - package).max()))
    assert away == sorted(away) and away[0] < 0.4 and away[-1] < 4


def test_looks_are_at_drafts_before_which_all_stood() -> None:
    scores, right = drafted(60)
    found = looks(scores, right)
    expected = [
        (used, depth, right[anchor, used + depth])
        for used in range(PLACES)
        for depth in range(PLACES - used)
        for anchor in range(60 - PLACES - 1)
        if right[anchor, used : used + depth].all()
    ]
    assert found[:, 3:].tolist() == [list(map(float, each)) for each in expected]
    assert not len(looks(*drafted(PLACES + 1)))
