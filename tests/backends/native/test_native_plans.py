"""Decisions of whole steps on the native backend: their parts find what the host's do, and what the replay does."""

from collections.abc import Callable
from dataclasses import asdict, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.replay.prior import Prior as ReplayPrior
from bench.replay.times import StepTimes
from bench.replay.worth import MASK_COUNTS, solve
from native import skip_without_kernels
from stridelm.backends.native.library import Costs, PlanQuestion, library
from stridelm.backends.native.stepper import prior_of
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.cost import Cost
from stridelm.decode.draft_prior import draft_priors
from stridelm.decode.planner import Outlook, choose, gains
from stridelm.draft.ngram import NgramDrafter
from stridelm.draft.prediction import Follower
from stridelm.params import SamplingParams
from stridelm.types import MASKS, ROOT, DraftTree, Sequence

NO_END: frozenset[int] = frozenset()


def look_up(text: list[int], most: int) -> tuple[list[int], list[float]]:
    tokens, scores = np.empty(64, np.int32), np.empty(64)
    array = np.array(text, np.int32)
    count = library().stride_look_up(array.ctypes.data, len(array), most, tokens.ctypes.data, scores.ctypes.data)
    return tokens[:count].tolist(), scores[:count].tolist()


def follow(prediction: list[int], text: list[int], prompt: int, most: int) -> tuple[list[int], list[float]]:
    tokens, scores = np.empty(64, np.int32), np.empty(64)
    one, two = np.array(prediction, np.int32), np.array(text, np.int32)
    count = library().stride_follow(
        one.ctypes.data, len(one), two.ctypes.data, len(two), prompt, most, tokens.ctypes.data, scores.ctypes.data
    )
    return tokens[:count].tolist(), scores[:count].tolist()


FEW = st.lists(st.integers(0, 3), min_size=1, max_size=60)


@settings(max_examples=300)
@given(FEW, st.integers(1, 12))
def test_look_up(text: list[int], most: int) -> None:
    skip_without_kernels()
    sequence = Sequence(list(text), SamplingParams(), Autoregressive(), NO_END, 1000)
    (expected,) = NgramDrafter(most).propose([sequence])
    tokens, scores = look_up(text, most)
    assert tuple(tokens) == expected.tokens and scores == pytest.approx(expected.scores)


@settings(max_examples=300)
@given(FEW, FEW, st.lists(st.integers(0, 3), max_size=30), st.booleans())
def test_following_a_prediction(prediction: list[int], text: list[int], prompt: list[int], ends_alike: bool) -> None:
    skip_without_kernels()
    if ends_alike:
        prompt = prompt + prediction[: len(prediction) // 2]
    follower = Follower(tuple(prediction), prompt)
    follower.follow([*prompt, *text])
    expected = follower.propose(48)
    tokens, scores = follow(prediction, [*prompt, *text], len(prompt), 48)
    assert tokens == expected[0] and scores == pytest.approx(expected[1])


def plan_of(tree: DraftTree, outlook: Outlook) -> tuple[float, list[int]]:
    """Its worth; numbers of nodes, of anchors and of masks per anchor."""
    fresh = [each for row, masks in zip(outlook.fresh, outlook.mask_options, strict=True) for each in row[:masks]]
    seconds, left, fresh_worth, scores = (
        np.array(each, np.float64) for each in (outlook.seconds, outlook.left, fresh, tree.scores)
    )
    options, parents = np.array(outlook.mask_options, np.int64), np.array(tree.parents, np.int32)
    question = PlanQuestion(
        outlook.rate, outlook.mask_seconds, outlook.mask_row_seconds, outlook.pending, len(options), len(left),
        *(each.ctypes.data for each in (seconds, left, fresh_worth, options)),
    )  # fmt: skip
    chosen, anchors, worth = np.empty(3, np.int64), np.empty(64, np.int32), np.empty(1)
    library().stride_choose(
        len(tree), parents.ctypes.data, scores.ctypes.data, question, chosen.ctypes.data, anchors.ctypes.data,
        worth.ctypes.data,
    )  # fmt: skip
    return float(worth[0]), chosen.tolist()


@pytest.mark.parametrize("nodes", [0, 1, 3, 4, 5, 8, 12])
@pytest.mark.parametrize("make_parent", [lambda dice, node: node - 1, lambda dice, node: dice.randint(ROOT, node - 1)])
def test_plans(nodes: int, make_parent: Callable[[Random, int], int]) -> None:
    skip_without_kernels()
    dice, kinds = Random(nodes), set[tuple[bool, bool]]()
    for _ in range(150):
        acceptance = [dice.uniform(0.2, 0.99) for _ in range(8)]
        seconds = np.cumsum([1.0, *(dice.uniform(0, 0.3) for _ in range(160))])
        rate = dice.uniform(0.5, 2.5)
        gained = gains(acceptance, np.diff(seconds)[1:9].tolist(), rate)
        options = (2, 4, 8)[: dice.randint(0, 3)]
        left = (*gained[5][1:], 0.0) if dice.random() < 0.5 else (0.0,)
        fresh = [gained[count] for count in options]
        outlook = Outlook(rate, seconds, 1, options, dice.uniform(0, 0.3), dice.uniform(0, 0.05), fresh, left)
        tree = sorted_tree(dice, nodes, make_parent)
        plan = choose(tree, outlook)
        worth, (count, anchors, masks) = plan_of(tree, outlook)
        assert worth == pytest.approx(plan.worth, abs=1e-9)
        assert (count, anchors, masks if anchors else 0) == (plan.nodes, len(plan.anchors), plan.masks)
        kinds.add((count > 0, anchors > 0))
    assert len(kinds) > 1


def sorted_tree(dice: Random, nodes: int, make_parent: Callable[[Random, int], int]) -> DraftTree:
    """The likeliest paths first."""
    parents = [make_parent(dice, node) for node in range(nodes)]
    scores = [dice.uniform(0.3, 0.95) / (1 + parents.count(parents[node])) for node in range(nodes)]
    paths: list[float] = []
    for parent, score in zip(parents, scores, strict=True):
        paths.append(score * (1.0 if parent == ROOT else paths[parent]))
    order = sorted(range(nodes), key=lambda node: -paths[node])
    renamed = {ROOT: ROOT} | {node: at for at, node in enumerate(order)}
    return DraftTree.of(range(nodes), [renamed[parents[node]] for node in order], MASKS, [scores[n] for n in order])


@pytest.mark.parametrize("vocabulary", [16, 17, 511, 512, 513, 1500, 49152])
def test_candidates_are_the_likeliest_tokens(vocabulary: int, kernels: Any) -> None:
    random = np.random.default_rng(vocabulary)
    for count in (1, 5, 16):
        for spread in (0.0, 1.0, 30.0):
            logits = np.round(random.normal(size=vocabulary) * spread, 1).astype(np.float32)  # some are equal
            if spread == 1.0:
                logits[-1] = 100.0
            tokens, found = np.full(count, -1, np.int64), np.empty(count, np.float32)
            log_sum = np.empty(1, np.float32)
            best = kernels.stride_candidates(
                *(logits.ctypes.data, vocabulary, count, tokens.ctypes.data, found.ctypes.data, log_sum.ctypes.data)
            )
            assert log_sum[0] == pytest.approx(np.logaddexp.reduce(logits.astype(np.float64)), rel=1e-5, abs=1e-5)
            assert best == int(logits.argmax())
            assert len(set(tokens.tolist())) == count and (logits[tokens] == found).all()
            assert sorted(found) == sorted(np.sort(logits)[-count:])


@pytest.mark.parametrize("place", [0, 5, 511, 512, 1499])
def test_one_logit_that_is_no_number_shows_in_the_sum(place: int, kernels: Any) -> None:
    """So a text is refused then, whatever token the draw takes."""
    logits, tokens, found, log_sum = (np.zeros(size, np.float32) for size in (1500, 2, 1, 1))
    logits[place] = np.nan
    addresses = (each.ctypes.data for each in (tokens, found, log_sum))
    kernels.stride_candidates(logits.ctypes.data, 1500, 1, *addresses)
    assert np.isnan(log_sum[0])


# What chains are worth

CURVE = Cost((1, 2, 4, 8, 16), (1.8, 2.1, 2.3, 3.5, 6.3), masks=0.3, mask_row=0.05, level=0.06)
MASKS_OF_CHAIN = 8
AROUND = 0.2


def worth_of(cost: Cost, ease: float, texts: int = 1, length: int = 0, around: float = 0.0) -> tuple[np.ndarray, float]:
    """[places of the chain][places passed] -> tokens; and the pace."""
    numbers = (cost.masks, cost.mask_row, cost.context, cost.sequence, cost.head, cost.head_row, cost.level)
    costs = Costs(cost.table.ctypes.data, len(cost.table) - 1, *numbers, around)
    tokens = np.empty((MASKS_OF_CHAIN + 1, MASKS_OF_CHAIN + 1))
    prior = prior_of(draft_priors()[0])
    return tokens, library().stride_worth(prior, MASKS_OF_CHAIN, costs, texts, length, ease, tokens.ctypes.data)


@pytest.mark.parametrize("length", [100, 4000])
def test_rows_of_long_texts_cost_more(length: int) -> None:
    """As if the costs of rows were those of this length."""
    skip_without_kernels()
    each = 2e-4
    folded = replace(
        CURVE, seconds=tuple(s + each * length * n for n, s in zip(CURVE.rows, CURVE.seconds, strict=True))
    )
    tokens, pace = worth_of(replace(CURVE, context=each), 0.8, length=length)
    expected, its_pace = worth_of(folded, 0.8)
    assert pace == pytest.approx(its_pace, rel=1e-3) and pace < worth_of(CURVE, 0.8)[1]
    assert tokens == pytest.approx(expected, abs=1e-2)


@pytest.mark.parametrize("ease", [0.2, 0.5, 0.65, 0.8, 0.94])
def test_worth_is_that_of_the_replay(ease: float) -> None:
    skip_without_kernels()
    prior = ReplayPrior(**asdict(draft_priors()[0]))
    rows = dict(enumerate(CURVE.table[:129].tolist()))
    expected, pace = solve(prior, StepTimes(rows, CURVE.masks, CURVE.mask_row, AROUND, CURVE.level)).at(ease)
    tokens, found = worth_of(CURVE, ease, around=AROUND)
    assert found == pytest.approx(pace, rel=1e-6)
    for masks in MASK_COUNTS:
        assert tokens[masks][:masks] == pytest.approx([expected[used][masks] for used in range(masks)], abs=1e-6)


def test_masks_are_worth_more_in_easy_texts_and_nothing_where_rows_are_dear() -> None:
    skip_without_kernels()
    easy, fast = worth_of(CURVE, 0.9)
    hard, slow = worth_of(CURVE, 0.3)
    assert easy[4][0] > hard[4][0] >= 0 and fast > slow >= 1 / CURVE(1) * (1 - 1e-9)
    dear = Cost((1, 64), (1.0, 64.0))
    tokens, pace = worth_of(dear, 0.9)
    assert not tokens.any() and pace == pytest.approx(1.0)


def test_drafts_are_worth_less_to_a_text_beside_many_others() -> None:
    skip_without_kernels()
    rising = Cost((1, 8, 64), (1.0, 1.1, 57.1))
    alone, _ = worth_of(rising, 0.8)
    crowded, pace = worth_of(rising, 0.8, texts=16)
    assert alone[4][0] > 0 and not crowded.any()
    assert pace == pytest.approx(16 / rising(16))


@settings(max_examples=200)
@given(
    st.booleans(), st.floats(0, 1), st.floats(0.01, 0.99), st.integers(0, 7), st.integers(0, 7), st.integers(2, 12),
    st.integers(0, 7),
)  # fmt: skip
def test_chances_are_those_of_the_replay(
    is_sampled: bool, score: float, ease: float, used: int, depth: int, length: int, ahead: int
) -> None:
    """The weights were learned for what the replay computes."""
    skip_without_kernels()
    kept, found = draft_priors()[is_sampled], np.empty(4)
    library().stride_chances(prior_of(kept), score, ease, used, depth, length, ahead, found.ctypes.data)
    prior = ReplayPrior(**asdict(kept))
    by_score, by_match = prior.of_score(score, ease, used, depth), prior.of_match(length, ahead)
    expected = [by_score, prior.of_place(ease, used, depth), by_match, prior.joint(prior.agreed, by_score, by_match)]
    assert found == pytest.approx(expected, rel=1e-9)
