"""Draws: the noise against plain Python, the filters against numpy, the frequencies against the distribution."""

import math
from collections.abc import Sequence as Items
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from stridelm.decode.autoregressive import Autoregressive
from stridelm.params import InputError, SamplingParams
from stridelm.sampling import (
    confidence,
    draw,
    draw_among,
    drawer,
    gumbel_of,
    gumbel_rows,
    keep_likely,
    penalise,
    perturbed_scores,
)
from stridelm.types import Sequence

words = st.integers(0, 2**64 - 1)


def mixed(word: int) -> int:
    """SplitMix64's finaliser with Python's own integers."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


@given(words, st.integers(0, 100), st.integers(0, 10**6))
def test_noise_is_splitmix64_of_seed_choice_position_and_token(seed: int, choice: int, position: int) -> None:
    golden = 0x9E3779B97F4A7C15
    key = seed
    key = mixed((key + golden) % 2**64)
    key = mixed((key + choice + golden) % 2**64)
    key = mixed((key + position + golden) % 2**64)
    noise = gumbel_of(torch.arange(20), seed, choice, position)
    for token in range(20):
        uniform = ((mixed((key + (token + 1) * golden) % 2**64) >> 11) + 0.5) / 2**53
        assert noise[token].item() == pytest.approx(-math.log(-math.log(uniform)), rel=1e-12)


def test_a_tokens_noise_does_not_depend_on_the_size_of_the_vocabulary() -> None:
    assert torch.equal(gumbel_of(torch.arange(100), 1, 0, 5), gumbel_of(torch.arange(1000), 1, 0, 5)[:100])


def test_a_tokens_noise_does_not_depend_on_which_others_are_asked_for() -> None:
    tokens = torch.tensor([7, 93, 0, 41])
    assert torch.equal(gumbel_of(tokens, 1, 2, 5), gumbel_of(torch.arange(100), 1, 2, 5)[tokens])


FILTERS = {
    "none": SamplingParams(temperature=1.0),
    "cold": SamplingParams(temperature=0.5),
    "top_k": SamplingParams(temperature=1.0, top_k=3),
    "top_p": SamplingParams(temperature=1.0, top_p=0.7),
    "min_p": SamplingParams(temperature=1.0, min_p=0.3),
    "all": SamplingParams(temperature=0.8, top_k=5, top_p=0.9, min_p=0.1),
}


SETTINGS = FILTERS | {
    "repetition": SamplingParams(temperature=1.0, repetition_penalty=1.4),
    "presence": SamplingParams(temperature=1.0, presence_penalty=0.7),
    "frequency": SamplingParams(temperature=1.0, frequency_penalty=0.4),
    "bias": SamplingParams(temperature=1.0, logit_bias={0: -0.8, 2: 1.5}),
    "ban": SamplingParams(temperature=1.0, logit_bias={3: -math.inf, 5: -math.inf}),
    "everything": SamplingParams(
        temperature=0.8, top_k=5, top_p=0.9, min_p=0.1, repetition_penalty=1.3, presence_penalty=0.3,
        frequency_penalty=0.2, logit_bias={2: 1.5, 3: -math.inf},
    ),
}  # fmt: skip

DRAWS = 1_000_000
LOGITS = torch.tensor([1.2, 0.3, -0.5, 2.0, 0.9, -1.0, 0.0, 1.5])
ANSWER = [0, 1, 1, 7]
POSITIONS = range(10, 110)
SEEDS = range(DRAWS // len(POSITIONS))


def before(position: int) -> list[int]:
    """As many tokens, of which the penalties say the same at every position."""
    return [5] * (position - len(ANSWER)) + ANSWER


def draw_at(seed: int, position: int, params: SamplingParams) -> int:
    return draw(LOGITS, params, before(position), position - len(ANSWER), seed=seed, choice=0)


def drawn_at_once(params: SamplingParams) -> np.ndarray:
    """`draw_at` for all seeds and positions: penalties and filters once, then each draw's own noise."""
    penalised = penalise(LOGITS, params, before(POSITIONS[0]), POSITIONS[0] - len(ANSWER))
    scores_V = keep_likely((penalised - penalised.max()) / params.temperature, params).double()
    return (scores_V + all_noise()).argmax(dim=-1).view(len(SEEDS), len(POSITIONS)).numpy()


@cache
def all_noise() -> torch.Tensor:
    seeds, positions = torch.meshgrid(torch.tensor(SEEDS), torch.tensor(POSITIONS), indexing="ij")
    return gumbel_rows(seeds.flatten(), positions.flatten(), len(LOGITS))


def probabilities(params: SamplingParams) -> np.ndarray:
    """What the draws should follow, by the reference."""
    text = before(POSITIONS[0])
    penalised = reference.penalised(LOGITS.double().numpy(), params, text, len(text) - len(ANSWER))
    return reference.softmax(reference.kept(penalised / params.temperature, params, 0.0))


def follows(drawn: np.ndarray, probability: np.ndarray) -> bool:
    """Chi-square at 4 sigma; what cannot be must not be."""
    counted, expected = np.bincount(drawn, minlength=len(probability)), probability * len(drawn)
    possible = expected > 0
    statistic = ((counted[possible] - expected[possible]) ** 2 / expected[possible]).sum()
    freedom = possible.sum() - 1
    return counted[~possible].sum() == 0 and statistic < freedom + 4 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_million_draws_follow_the_distribution(name: str) -> None:
    params = SETTINGS[name]
    drawn, probability = drawn_at_once(params), probabilities(params)
    assert drawn.size == DRAWS
    assert follows(drawn.flatten(), probability)
    # Neighbours know nothing of each other: neither the next position nor the next seed.
    size, pairs = len(probability), np.outer(probability, probability).flatten()
    assert follows((drawn[:, ::2] * size + drawn[:, 1::2]).flatten(), pairs)
    assert follows((drawn[::2] * size + drawn[1::2]).flatten(), pairs)
    # All this is true of `draw` itself: here are its own draws.
    for row, column in np.random.default_rng(0).integers(drawn.shape, size=(200, 2)):
        assert draw_at(SEEDS[row], POSITIONS[column], params) == drawn[row, column]


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_a_million_calls_of_draw_follow_the_distribution(name: str) -> None:
    """A million over all settings."""
    params = SETTINGS[name]
    rows = -(-DRAWS // len(SETTINGS) // len(POSITIONS))
    drawn = np.array([[draw_at(seed, position, params) for position in POSITIONS] for seed in SEEDS[:rows]])
    assert drawn.size * len(SETTINGS) >= DRAWS
    assert follows(drawn.flatten(), probabilities(params))
    assert (drawn == drawn_at_once(params)[:rows]).all()


@pytest.mark.parametrize(
    "wrong", [{"temperature": 1.01}, {"presence_penalty": 0.71}, {"top_k": 7}, {"logit_bias": {2: 0.04}}]
)
def test_a_million_draws_would_show_a_small_mistake(wrong: dict[str, Any]) -> None:
    params = SETTINGS["presence"]
    assert not follows(drawn_at_once(params).flatten(), probabilities(replace(params, **wrong)))


@given(st.lists(st.floats(-8, 8, width=32), min_size=8, max_size=30), st.sampled_from(sorted(SETTINGS)), words)
def test_draw_equals_the_reference(logits: list[float], name: str, seed: int) -> None:
    params = replace(SETTINGS[name], seed=seed)
    expected = reference.decide(np.array(logits), params, [0, 1, 4, 4], 1, choice=2)
    token = draw(torch.tensor(logits), params, [0, 1, 4, 4], 1, seed=seed, choice=2)
    assert token == expected.token or expected.margin < reference.NEAR_TIE


class Fixed:
    """A grammar that allows the same tokens everywhere, and wants to be asked about the answer alone."""

    def __init__(self, allowed: list[bool], written: list[int]) -> None:
        self.tokens = np.array(allowed)
        self.written = written

    def allowed(self, written: Items[int]) -> np.ndarray:
        assert list(written) == self.written
        return self.tokens

    def accepts(self, written: Items[int], tokens: Items[int]) -> int:
        raise NotImplementedError


@given(
    st.lists(st.tuples(st.floats(-8, 8, width=32), st.booleans()), min_size=8, max_size=30),
    st.sampled_from(sorted(SETTINGS)),
    words,
)
def test_a_draw_under_a_grammar_equals_the_reference(tokens: list[tuple[float, bool]], name: str, seed: int) -> None:
    """Penalties and biases, then the grammar, then the filters over what is left."""
    logits, allowed = [logit for logit, _ in tokens], [is_allowed for _, is_allowed in tokens]
    allowed[5] = True
    params, text = replace(SETTINGS[name], seed=seed), [0, 1, 4, 4]
    expected = reference.decide(np.array(logits), params, text, 1, 2, lambda written: np.array(allowed))
    grammar = Fixed(allowed, text[1:])
    token = draw(torch.tensor(logits), params, text, 1, seed=seed, choice=2, grammar=grammar)
    assert allowed[token] and (token == expected.token or expected.margin < reference.NEAR_TIE)
    sequence = Sequence([0], params, Autoregressive(), frozenset(), 100, choice=2, grammar=grammar)
    assert draw_among(torch.arange(len(logits)), torch.tensor(logits), sequence, text) == token
    assert drawer(torch.tensor([logits]), sequence)(0, text) == token


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_may_leave_nothing_of_a_grammar(temperature: float) -> None:
    grammar = Fixed([False, True, True, False], [])
    params = SamplingParams(temperature=temperature, logit_bias={1: -math.inf})
    assert draw(torch.zeros(4), params, [7], 1, seed=0, choice=0, grammar=grammar) == 2
    params = replace(params, logit_bias={1: -math.inf, 2: -math.inf})
    with pytest.raises(InputError, match="no token is left"):
        draw(torch.zeros(4), params, [7], 1, seed=0, choice=0, grammar=grammar)
    # A draft model may know fewer tokens than there are: it has nothing to say, but does not fail.
    scores = perturbed_scores(torch.zeros(1), SamplingParams(), [7], 1, seed=0, choice=0, grammar=grammar)
    assert scores.tolist() == [-math.inf]


@pytest.mark.parametrize("name", FILTERS)
@given(words)
def test_a_draw_among_the_likeliest_is_the_draw_where_it_is_one_of_them(name: str, seed: int) -> None:
    params = replace(FILTERS[name], seed=seed, repetition_penalty=1.2, logit_bias={3: 1.0, 4: -math.inf})
    sequence = Sequence([1, 2], params, Autoregressive(), frozenset(), 100, choice=1)
    logits = torch.linspace(-2, 3, 40)[torch.randperm(40, generator=torch.Generator().manual_seed(seed % 2**32))]
    expected = draw(logits, params, [1, 2, 3], 2, seed=seed, choice=1)
    assert draw_among(torch.randperm(40), logits, sequence, [1, 2, 3]) == expected
    few = logits.topk(12).indices
    token = draw_among(few, logits, sequence, [1, 2, 3])
    assert token in few
    assert token == expected or expected not in few or params.top_p < 1 or params.top_k


def test_a_draw_among_banned_tokens_is_some_token() -> None:
    """A draft may be wrong; it must not fail."""
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, seed=1, logit_bias={3: -math.inf, 5: -math.inf})
        sequence = Sequence([1], params, Autoregressive(), frozenset(), 100)
        assert draw_among(torch.tensor([3, 5]), torch.zeros(8), sequence, [1]) in (3, 5)


@given(
    st.lists(st.floats(-5, 5, width=32), min_size=4, max_size=4),
    st.lists(st.integers(0, 3), max_size=8),
    st.integers(0, 8),
)
def test_penalties_equal_the_reference(logits: list[float], before: list[int], prompt_length: int) -> None:
    params = SamplingParams(
        repetition_penalty=1.7, presence_penalty=0.3, frequency_penalty=0.2, logit_bias={1: 0.5, 2: -math.inf}
    )
    ours = penalise(torch.tensor(logits), params, before, prompt_length)
    assert ours.tolist() == pytest.approx(
        reference.penalised(np.array(logits), params, before, prompt_length), rel=1e-4, abs=1e-5
    )


def test_penalising_leaves_the_logits_as_they_were() -> None:
    logits = torch.zeros(4)
    penalise(logits, SamplingParams(logit_bias={1: 3.0}), [1], 0)
    assert logits.tolist() == [0, 0, 0, 0]


def test_a_cold_draw_is_finite_even_at_the_coldest() -> None:
    assert draw(torch.tensor([1.0, 80.0, -80.0]), SamplingParams(temperature=1e-4), [], 0, seed=0, choice=0) == 1


def test_confidence_is_the_models_own_probability() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]])
    assert confidence(logits, [1, 0]) == pytest.approx((0.75, 0.5))


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": math.nan}, {"temperature": -1}, {"temperature": math.inf}, {"temperature": 1e-9},
        {"top_p": 0}, {"top_p": 1.1}, {"top_p": math.nan}, {"top_k": -1}, {"top_k": 1.5}, {"min_p": -0.1}, {"min_p": 2},
        {"max_tokens": 0}, {"max_tokens": True}, {"repetition_penalty": 0}, {"presence_penalty": math.nan},
        {"frequency_penalty": math.inf}, {"logit_bias": {-1: 0.0}}, {"logit_bias": {3: math.nan}},
        {"logit_bias": {3: math.inf}}, {"seed": -1}, {"seed": 2**64}, {"stop": ("",)}, {"stop": "text"},
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused_by_name(settings: dict[str, object]) -> None:
    (name,) = settings
    with pytest.raises(InputError, match=f"^{name} ") as refused:
        SamplingParams(**settings)  # type: ignore[arg-type]
    assert refused.value.field == name
