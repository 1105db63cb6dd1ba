"""Running acceptance rates: on made-up streams whose true rates are known."""

import json
import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stridelm.draft.calibration import LEAST, MOST, Calibration, rising
from stridelm.types import ROOT, DraftTree

GRID = [number / 200 for number in range(201)]
scores = st.floats(0, 1)


def watch(calibration: Calibration, truth: Callable[[float], float], count: int, seed: int = 0) -> None:
    """So many single nodes of random scores, each standing with the chance that `truth` gives its score."""
    chance = random.Random(seed)
    for _ in range(count):
        score = chance.random()
        calibration.observe(DraftTree.chain([1], "s", [score]), [0] if chance.random() < truth(score) else [])


def errors(calibration: Calibration, truth: Callable[[float], float]) -> list[float]:
    return [abs(calibration.accepted("s", score, 1) - truth(score)) for score in GRID]


@given(scores, st.integers(1, 20))
def test_a_drafter_is_taken_at_its_word_at_first(score: float, depth: int) -> None:
    assert Calibration().accepted("new", score, depth) == pytest.approx(min(max(score, LEAST), MOST), abs=1e-9)


def test_a_few_looks_move_the_prior_a_little_and_only_near_the_score() -> None:
    calibration = Calibration()
    for _ in range(3):
        calibration.observe(DraftTree.chain([1], "s", [0.5]), [])
    assert 0.35 < calibration.accepted("s", 0.5, 1) < 0.45
    assert calibration.accepted("s", 0.95, 1) == pytest.approx(0.95, abs=0.01)
    assert calibration.accepted("s", 0.05, 1) == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize(
    "truth", [lambda score: score, lambda score: score**3, lambda score: score**0.3, lambda score: 0.4 + 0.2 * score]
)
def test_it_finds_the_true_rates(truth: Callable[[float], float]) -> None:
    """Scores that are right, too bold, too timid, or say next to nothing; within what 400 looks can tell."""
    calibration = Calibration()
    before = sum(errors(calibration, truth)) / len(GRID)
    watch(calibration, truth, 3000)
    after = errors(calibration, truth)
    assert sum(after) / len(GRID) < 0.06
    # The very ends are hardly ever seen: the prior holds there.
    assert max(after[10:-10]) < 0.2
    assert before < 0.01 or sum(after) / len(GRID) < before / 2


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("score", [0.0, 0.37, 0.9, 1.0])
def test_one_score_again_and_again_gets_its_rate(score: float, rate: float) -> None:
    calibration, chance = Calibration(), random.Random(1)
    for _ in range(2000):
        calibration.observe(DraftTree.chain([1], "s", [score]), [0] if chance.random() < rate else [])
    assert calibration.accepted("s", score, 1) == pytest.approx(rate, abs=0.08)


def test_a_new_text_is_heard_soon_and_wholly_in_the_end() -> None:
    calibration = Calibration()
    watch(calibration, lambda score: 0.9, 3000)
    assert calibration.accepted("s", 0.6, 1) > 0.8
    watch(calibration, lambda score: 0.1, 300)
    assert calibration.accepted("s", 0.6, 1) < 0.7
    watch(calibration, lambda score: 0.1, 1500)
    assert calibration.accepted("s", 0.6, 1) < 0.25


@given(st.lists(st.tuples(scores, st.booleans()), max_size=60))
def test_a_higher_score_never_gets_a_lower_estimate(looks: list[tuple[float, bool]]) -> None:
    calibration = Calibration()
    for score, stood in looks:
        calibration.observe(DraftTree.chain([1], "s", [score]), [0] if stood else [])
    estimates = [calibration.accepted("s", score, 1) for score in GRID]
    assert all(LEAST - 1e-12 <= estimate <= MOST + 1e-12 for estimate in estimates)
    assert all(low <= high + 1e-12 for low, high in pairwise(estimates))


def test_scores_that_say_the_opposite_of_the_truth_come_to_say_nothing() -> None:
    calibration = Calibration()
    watch(calibration, lambda score: 1 - score, 2000)
    estimates = [calibration.accepted("s", score, 1) for score in (0.2, 0.5, 0.8)]
    assert max(estimates) - min(estimates) < 0.05 and estimates[0] == pytest.approx(0.5, abs=0.1)


def test_a_score_that_is_no_number_counts_as_hopeless() -> None:
    calibration = Calibration()
    assert calibration.accepted("s", math.nan, 1) == LEAST
    calibration.observe(DraftTree.chain([1], "s", [math.nan]), [])
    assert calibration.accepted("s", math.nan, 1) == pytest.approx(LEAST, abs=1e-3)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 5)), max_size=12))
def test_pooling_gives_the_nearest_rising_means(parts: list[tuple[float, float]]) -> None:
    """By the formula of the isotonic fit: over starts the largest, over ends the smallest, of the means between."""

    def mean(start: int, end: int) -> float:
        within = parts[start:end]
        return sum(value * weight for value, weight in within) / sum(weight for _, weight in within)

    count = len(parts)
    expected = [
        max(min(mean(start, end) for end in range(at + 1, count + 1)) for start in range(at + 1)) for at in range(count)
    ]
    assert rising([value for value, _ in parts], [weight for _, weight in parts]) == pytest.approx(expected)


BRANCHED = DraftTree(
    tokens=(1, 2, 3, 4, 5, 6),
    parents=(ROOT, ROOT, 0, 0, 1, 2),
    sources=("a", "b", "a", "b", "b", "a"),
    scores=(0.9, 0.5, 0.3, 0.4, 0.5, 0.7),
)


def test_a_tree_is_counted_by_who_was_looked_at() -> None:
    """Node 0 stands, so its children 2 and 3 were looked at and refused, like its sibling 1; 4 and 5 were not."""
    calibration = Calibration()
    calibration.observe(BRANCHED, [0])
    seen = calibration.snapshot()
    assert {name: seen["a"][name] for name in ("drafted", "looked_at", "accepted")} == {
        "drafted": [1, 1, 1],
        "looked_at": [1, 1, 0],
        "accepted": [1, 0, 0],
    }
    assert {name: seen["b"][name] for name in ("drafted", "looked_at", "accepted")} == {
        "drafted": [1, 2],
        "looked_at": [1, 1],
        "accepted": [0, 0],
    }
    assert calibration.accepted("a", 0.9, 1) > 0.9 and calibration.accepted("a", 0.3, 2) < 0.3
    assert calibration.accepted("b", 0.4, 2) < 0.4
    json.dumps(seen)


def test_what_was_never_looked_at_moves_nothing() -> None:
    calibration, deep = Calibration(), DraftTree.chain([1, 2, 3], "s", [0.2, 0.9, 0.95])
    calibration.observe(deep, [])
    assert calibration.accepted("s", 0.95, 3) == pytest.approx(0.95, abs=1e-9)


@pytest.mark.parametrize(("tokens", "looked_at", "accepted"), [((9,), 2, 0), ((1, 9), 4, 1), ((1, 3, 6), 5, 3)])
def test_the_emitted_tokens_tell_what_stands(tokens: tuple[int, ...], looked_at: int, accepted: int) -> None:
    calibration = Calibration()
    calibration.observe_text(BRANCHED, tokens)
    parts = calibration.snapshot().values()
    assert sum(sum(part["looked_at"]) for part in parts) == looked_at
    assert sum(sum(part["accepted"]) for part in parts) == accepted
    assert sum(sum(part["drafted"]) for part in parts) == len(BRANCHED)


def test_what_comes_after_the_emitted_tokens_is_not_taken_for_refused() -> None:
    """The step ended before the draft did: the nodes behind the last token may yet be right."""
    calibration = Calibration()
    calibration.observe_text(DraftTree.chain([1, 2, 3], "s", [0.5, 0.5, 0.5]), [1, 2])
    assert calibration.snapshot()["s"]["looked_at"] == [1, 1, 0]
    assert calibration.accepted("s", 0.5, 3) > 0.5
