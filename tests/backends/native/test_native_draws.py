"""Draws of the kernels, of both builds: those of `stridelm.sampling`, whatever the logits and the rules.

Shape letters: V vocabulary, N some of it.
"""

import ctypes
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import reference
from stridelm.backends.native.library import DrawRules
from stridelm.decode.autoregressive import Autoregressive
from stridelm.params import SamplingParams
from stridelm.sampling import draw, gumbel_of, noise_key, perturbed_among
from stridelm.types import Sequence

VOCABULARY = 3000
TEMPERATURES = (1e-4, 0.3, 0.7, 1.0, 2.5, 100.0)
FILTERS = [
    {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    for top_k, top_p, min_p in product((0, 1, 5, 40, 500), (1.0, 0.95, 0.5, 1e-6), (0.0, 0.05, 0.9))
]
ROWS = ("gaussian", "peaked", "flat", "tied", "banned", "two of many", "like a model's")


def row(kind: str, size: int, seed: int) -> np.ndarray:
    random = np.random.default_rng([seed, size])
    x_V = random.normal(size=size)
    if kind == "peaked":
        x_V[random.integers(size, size=3)] += [9, 10, 11]
    elif kind == "flat":
        x_V = np.full(size, 1.5)
    elif kind == "tied":
        x_V = np.round(2 * x_V) / 2
    elif kind == "banned":
        x_V[random.random(size) < 0.9] = -np.inf
        x_V[random.integers(size)] = 0.5
    elif kind == "two of many":
        x_V = np.where(np.isin(np.arange(size), random.integers(size, size=2)), x_V, -np.inf)
    elif kind == "like a model's":
        x_V = 4 * x_V - 3 + 20 * (random.random(size) < 3 / size)
    return x_V.astype(np.float32)


def rules(params: SamplingParams, seed: int, choice: int) -> DrawRules:
    return DrawRules(params.temperature, params.top_p, params.min_p, params.top_k, noise_key(seed, choice))


def drawn(kernels: Any, logits_V: np.ndarray, params: SamplingParams, seed: int, choice: int, position: int) -> int:
    given = ctypes.byref(rules(params, seed, choice))
    return kernels.stride_draw(logits_V.ctypes.data, len(logits_V), given, position)


def check(kernels: Any, logits_V: np.ndarray, params: SamplingParams, seed: int, choice: int, position: int) -> None:
    before = [0] * position
    token = drawn(kernels, logits_V, params, seed, choice, position)
    expected = draw(logits_V, params, before, 0, seed=seed, choice=choice)
    if token != expected:
        known = reference.decide(logits_V.astype(float), replace(params, seed=seed), before, 0, choice)
        assert known.margin < reference.NEAR_TIE, (params, seed, choice, position, token, expected)


@pytest.mark.parametrize("kind", ROWS)
def test_draws_are_the_hosts(kernels: Any, kind: str) -> None:
    for number, (temperature, filters) in enumerate(product(TEMPERATURES, FILTERS)):
        logits_V = row(kind, VOCABULARY - number % 20, number)
        params = SamplingParams(temperature=temperature, **filters)
        check(kernels, logits_V, params, seed=number * 0x9E3779B97F4A7C15 % 2**64, choice=number % 3, position=number)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 31, 33, 511, 512, 513, 49152])
def test_rows_may_have_any_length(kernels: Any, size: int) -> None:
    for number, kind in enumerate(ROWS):
        logits_V = row(kind, size, number)
        for params in (
            SamplingParams(temperature=0.8),
            SamplingParams(temperature=0.8, top_k=size - 1),
            SamplingParams(temperature=0.8, top_p=0.9),
            SamplingParams(temperature=0.8, min_p=0.1),
            SamplingParams(temperature=0.8, top_k=3, top_p=0.8),
        ):
            check(kernels, logits_V, params, number, 0, 10**6)
        assert drawn(kernels, logits_V, SamplingParams(), 0, 0, 5) == logits_V.argmax()


def test_many_draws_from_one_row(kernels: Any) -> None:
    """Seeds, choices and positions: tokens from all over the vocabulary."""
    logits_V = row("gaussian", VOCABULARY, 0)
    params = SamplingParams(temperature=1.0)
    seen = {drawn(kernels, logits_V, params, seed, 0, 3) for seed in range(500)}
    assert len(seen) > 300
    for seed in range(300):
        check(kernels, logits_V, params, seed, seed % 2, seed % 7)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_are_not_numbers_give_some_token(kernels: Any, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_k=5, top_p=0.5, min_p=0.1)
    logits_V = row("gaussian", 100, 0)
    for odd, places in ((np.nan, [3]), (np.nan, [*range(100)]), (np.inf, [70]), (np.inf, [99, 98])):
        changed_V = logits_V.copy()
        changed_V[places] = odd
        token = drawn(kernels, changed_V, params, 1, 0, 4)
        assert 0 <= token < 100 if np.isnan(odd) else token == min(places)
        given = perturbed(kernels, np.arange(100), changed_V, params, 1, 0, 4)
        assert temperature == 0 or (given == -np.inf).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("size", [1, 5, 64])
def test_a_row_that_allows_nothing_gives_no_token(kernels: Any, temperature: float, size: int) -> None:
    logits_V = np.full(size, -np.inf, np.float32)
    assert drawn(kernels, logits_V, SamplingParams(temperature=temperature, top_p=0.5), 1, 0, 4) == -1
    params = SamplingParams(temperature=temperature)
    assert (perturbed(kernels, np.arange(size), logits_V, params, 1, 0, 4) == -np.inf).all()


def perturbed(
    kernels: Any, tokens_N: np.ndarray, logits_N: np.ndarray, params: SamplingParams, seed: int, choice: int, at: int
) -> np.ndarray:
    scores_N = np.full(len(tokens_N) + 1, 7.0)
    given = ctypes.byref(rules(params, seed, choice))
    kernels.stride_perturb(tokens_N.ctypes.data, logits_N.ctypes.data, len(tokens_N), given, at, scores_N.ctypes.data)
    assert scores_N[-1] == 7
    return scores_N[:-1]


@pytest.mark.parametrize("size", [1, 2, 5, 16, 64, 300])
def test_drafts_have_the_hosts_scores(kernels: Any, size: int) -> None:
    for number, (temperature, filters) in enumerate(product((0.0, *TEMPERATURES), FILTERS)):
        params = SamplingParams(temperature=temperature, seed=number, **filters)
        sequence = Sequence([1], params, Autoregressive(), frozenset(), 100, choice=number % 3)
        tokens_N = np.random.default_rng(number).permutation(50_000)[:size]
        logits_N = row(ROWS[number % 2], size, number)
        expected = perturbed_among(tokens_N, logits_N, sequence, [0] * number)
        given = perturbed(kernels, tokens_N, logits_N, params, number, number % 3, number)
        np.testing.assert_allclose(given, expected, rtol=1e-12, atol=1e-12)


def test_noise_is_the_hosts(kernels: Any) -> None:
    """Equal logits: what is left is the noise, of tokens from all over the 64-bit words."""
    tokens_N = np.random.default_rng(0).integers(0, 2**62, size=5000)
    zeros_N = np.zeros(len(tokens_N), np.float32)
    for seed, choice, position in ((0, 0, 0), (2**64 - 1, 7, 10**9), (12345, 1, 77)):
        given = perturbed(kernels, tokens_N, zeros_N, SamplingParams(temperature=1.0), seed, choice, position)
        np.testing.assert_allclose(given, gumbel_of(tokens_N, seed, choice, position), rtol=1e-13, atol=1e-13)
