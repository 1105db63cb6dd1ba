"""The dial: what a tolerance lets pass, against the rule written out, at every temperature."""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import reference
from fake_drafters import AlwaysWrong, SomewhereRight
from stepping import step_of
from stridelm import SamplingParams
from stridelm.api import LanguageModel
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.commit import decide
from stridelm.decode.speculative import Speculative
from stridelm.layout import make_block
from stridelm.sampling import drawer
from stridelm.types import ROOT, DraftTree, Output, Sequence
from tiny import plain_network

SETTINGS = {
    "greedy": SamplingParams(),
    "greedy, penalised": SamplingParams(
        repetition_penalty=1.4, presence_penalty=0.5, logit_bias={0: 1.0, 5: -math.inf}
    ),
    "cold": SamplingParams(temperature=0.3),
    "hot": SamplingParams(temperature=1.7),
    "filtered": SamplingParams(temperature=0.9, top_k=6, top_p=0.9, min_p=0.05),
    "all": SamplingParams(
        temperature=1.2, top_k=7, top_p=0.95, repetition_penalty=1.2, frequency_penalty=0.3, logit_bias={2: -math.inf}
    ),
}  # fmt: skip
NEAR = reference.NEAR_TIE
BEFORE = [1, 2, 3, 3, 4]
SIZE = 10

logits = st.integers(0, 2**32).map(lambda seed: np.random.default_rng(seed).normal(scale=1.5, size=SIZE).tolist())
tolerances = st.floats(0, 0.999)
tokens = st.lists(st.integers(0, SIZE - 1), unique=True, max_size=4)
settings = st.sampled_from(sorted(SETTINGS))
seeds = st.integers(0, 2**64 - 1)


def sequence_of(name: str, seed: int) -> Sequence:
    return Sequence(list(BEFORE), replace(SETTINGS[name], seed=seed), Autoregressive(), frozenset(), 100, choice=3)


def drawn(logits: list[float], sequence: Sequence, proposed: list[int], tolerance: float) -> int:
    return drawer(torch.tensor([logits]), sequence, tolerance)(0, sequence.tokens, proposed)


def naive_scores(logits: np.ndarray, sequence: Sequence, text: list[int], slack: float = 0.0) -> np.ndarray:
    """The perturbed scores, as the oracle of plain decoding has them; `slack` moves the borders of the filters."""
    params = sequence.params
    scores = reference.penalised(logits.astype(np.float64), params, text, sequence.prompt_length)
    if params.temperature == 0:
        return scores
    noise = reference.gumbel(sequence.seed, sequence.choice, len(text), len(scores))
    return reference.kept(scores / params.temperature, params, slack) + noise


def naive_choice(
    logits: np.ndarray, sequence: Sequence, text: list[int], proposed: list[int], tolerance: float
) -> tuple[int, bool]:
    """The token by the rule, and whether a rounding error could make it another."""
    (token, near), *shifted = (
        _by_the_rule(naive_scores(logits, sequence, text, slack), proposed, tolerance) for slack in (0.0, -NEAR, NEAR)
    )
    return token, near or any(other != token for other, _ in shifted)


def _by_the_rule(scores: np.ndarray, proposed: list[int], tolerance: float) -> tuple[int, bool]:
    best, near = int(scores.argmax()), bool(np.sort(scores)[-2] > scores.max() - NEAR)
    if best in proposed or tolerance == 0:
        return best, near
    border = scores.max() + math.log(1 - tolerance)
    passing = sorted((scores[token], token) for token in proposed if scores[token] >= border)
    near |= any(abs(scores[token] - border) < NEAR for token in proposed)
    near |= any(better[0] - worse[0] < NEAR for worse, better in pairwise(passing))
    return (passing[-1][1] if passing else best), near


@given(logits, settings, seeds, tokens, tolerances)
def test_a_draw_follows_the_rule(
    logits: list[float], name: str, seed: int, proposed: list[int], tolerance: float
) -> None:
    sequence = sequence_of(name, seed)
    expected, near = naive_choice(np.array(logits), sequence, BEFORE, proposed, tolerance)
    assume(not near)
    assert drawn(logits, sequence, proposed, tolerance) == expected


@given(logits, settings, seeds, tokens)
def test_without_tolerance_proposals_do_not_matter(
    logits: list[float], name: str, seed: int, proposed: list[int]
) -> None:
    sequence = sequence_of(name, seed)
    plain = drawer(torch.tensor([logits]), sequence)(0, sequence.tokens)
    assert drawn(logits, sequence, proposed, 0.0) == plain
    assert drawn(logits, sequence, [], 0.9) == plain, "nothing is proposed"


@given(logits, settings, seeds, st.integers(0, SIZE - 1), tolerances, tolerances)
def test_more_tolerance_accepts_no_less(
    logits: list[float], name: str, seed: int, proposed: int, one: float, other: float
) -> None:
    sequence = sequence_of(name, seed)
    less, more = sorted((one, other))
    if drawn(logits, sequence, [proposed], less) == proposed:
        assert drawn(logits, sequence, [proposed], more) == proposed


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(logit_bias={1: -math.inf}), {0, 2, 3}),
        (SamplingParams(temperature=1.0, logit_bias={0: -math.inf, 3: -math.inf}), {1, 2}),
        (SamplingParams(temperature=1.0, top_k=2), {0, 1}),
        (SamplingParams(temperature=1.0, top_p=0.75), {0, 1}),
        (SamplingParams(temperature=1.0, min_p=0.3), {0, 1, 2}),
    ],
)
def test_what_is_dropped_or_banned_never_passes(params: SamplingParams, kept: set[int]) -> None:
    probabilities = [math.log(each) for each in (0.5, 0.25, 0.2, 0.05)]
    for seed in range(50):
        sequence = Sequence([3], replace(params, seed=seed), Autoregressive(), frozenset(), 100)
        assert {drawn(probabilities, sequence, [token], 1 - 1e-12) for token in range(4)} == kept


def test_by_hand() -> None:
    """A token of 0.6 times the best one's probability: from a tolerance of 0.4 on."""
    logits = [0.0, math.log(0.6), math.log(0.5)]
    sequence = sequence_of("greedy", 0)
    assert [drawn(logits, sequence, [1], tolerance) for tolerance in (0, 0.39, 0.41)] == [0, 0, 1]
    assert [drawn(logits, sequence, [2], tolerance) for tolerance in (0.41, 0.51)] == [0, 2]
    assert drawn(logits, sequence, [2, 1], 0.6) == 1, "the better of two"
    assert drawn(logits, sequence, [2, 1, 0], 0.6) == 0, "the best of all"
    assert drawn([1.0, 1.0], sequence, [1], 0.0) == 0
    assert drawn([1.0, 1.0], sequence, [1], 1e-12) == 1, "just as likely"


def naive_walk(
    tree: DraftTree, logits: np.ndarray, sequence: Sequence, tolerance: float
) -> tuple[list[int], list[int], bool]:
    """Accepted nodes, emitted tokens, and whether any decision was a near thing. Row 0 stands before the tree, row
    i + 1 behind node i."""
    node, path, emitted, was_near = ROOT, [], [], False
    while True:
        children = {tree.tokens[each]: each for each in range(len(tree)) if tree.parents[each] == node}
        text = sequence.tokens + emitted
        token, near = naive_choice(logits[node + 1], sequence, text, list(children), tolerance)
        was_near |= near
        emitted.append(token)
        if token not in children:
            return path, emitted, was_near
        node = children[token]
        path.append(node)


def random_tree(source: random.Random, nodes: int) -> DraftTree:
    places: list[tuple[int, int]] = []
    while len(places) < nodes:
        place = source.randint(ROOT, len(places) - 1), source.randrange(SIZE)
        if place not in places:
            places.append(place)
    parents, held = zip(*places, strict=True)
    return DraftTree.of(held, parents, "random")


@pytest.mark.parametrize("name", SETTINGS)
def test_a_walk_follows_the_rule_at_every_node(name: str) -> None:
    source, compared, lengths = random.Random(1), 0, set()
    for seed in range(300):
        tree = random_tree(source, source.randint(1, 8))
        logits = np.array([[source.gauss(0, 1.5) for _ in range(SIZE)] for _ in range(1 + len(tree))], dtype=np.float32)
        tolerance = source.choice([0.0, 0.3, 0.8, 0.99])
        sequence = sequence_of(name, seed)
        path, emitted, was_near = naive_walk(tree, logits, sequence, tolerance)
        if was_near:
            continue
        block = make_block(len(BEFORE) - 1, BEFORE[-1:], tree)
        commit = decide(sequence, block, Output(torch.from_numpy(logits)), tolerance)
        assert commit.tokens == tuple(emitted)
        assert commit.kept == (0, *(1 + node for node in path))
        assert commit.sources == ("random",) * len(path) + ("model",)
        compared += 1
        lengths.add(len(path))
    assert compared > 290 and len(lengths) > 2


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_whole_answers(temperature: float, language_model: LanguageModel, tiny_folder: Callable[..., Path]) -> None:
    """Without tolerance the plain text, whatever is proposed; with nearly all of it every proposal stands."""
    params = SamplingParams(max_tokens=30, temperature=temperature, seed=5)
    ids = language_model.encode("abcabc abd", raw=True)
    expected = reference.reference(plain_network(str(tiny_folder("llama"))), ids, params, frozenset())
    known = {tuple(ids): [decision.token for decision in expected]}
    forwards: dict[tuple[str, float], int] = {}
    for drafter in (AlwaysWrong, SomewhereRight):
        for tolerance in (0.0, 0.5, 1 - 1e-12):
            policy = Speculative(drafter(known), tolerance)
            sequence = Sequence(list(ids), params, policy, frozenset(), 512)
            language_model.engine.add(sequence)
            while sequence.finish_reason is None:
                step_of(language_model.engine)
            forwards[drafter.__name__, tolerance] = sequence.stats.forwards
            assert (len(sequence.output), policy.exact) == (30, tolerance == 0)
            assert tolerance or reference.first_departure(expected, sequence.output) is None
    assert forwards["AlwaysWrong", 0.0] == 30
    assert forwards["AlwaysWrong", 1 - 1e-12] == 5, "five drafts and one token of the model's own"
    assert forwards["SomewhereRight", 1 - 1e-12] < forwards["SomewhereRight", 0.0]
