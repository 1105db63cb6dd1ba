"""Numpy arrays and torch tensors: the same operations, the same draws, the same answers; and torch stays out."""

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from numpy_backend import as_numpy
from stridelm import arrays
from stridelm.api import LanguageModel
from stridelm.decode.autoregressive import Autoregressive
from stridelm.decode.cost import measure
from stridelm.params import SamplingParams
from stridelm.sampling import (
    best_or_tolerated,
    confidence,
    draw,
    draw_among,
    drawer,
    gumbel_of,
    gumbel_rows,
    keep_likely,
    likeliest,
    perturbed_scores,
)
from stridelm.settings import DECODERS, DecodeSettings
from stridelm.types import Sequence

INFINITE = float("inf")
RANDOM = np.random.default_rng(3)


def numbers(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def row(size: int, spread: float = 4.0) -> np.ndarray:
    return (RANDOM.normal(size=size) * spread).astype(np.float32)


def nasty() -> dict[str, np.ndarray]:
    ties = np.repeat(numbers(3, 1, 3, -2), 5)
    gaps = row(40)
    gaps[::3] = -INFINITE
    last = np.full(9, -INFINITE, dtype=np.float32)
    last[4] = 1
    return {
        "random": row(1000),
        "flat": row(1000, 0.01),
        "steep": row(1000, 40.0),
        "ties": ties,
        "equal": np.zeros(12, dtype=np.float32),
        "gaps": gaps,
        "one": last,
        "huge": numbers(3e38, -3e38, 1e38, 0),
        "single": numbers(2),
    }


NASTY = nasty()
EMPTY = np.full(6, -INFINITE, dtype=np.float32)
BROKEN = numbers(1, math.nan, 2)


def same(ours: Any, theirs: torch.Tensor, *, within: float = 0.0) -> None:
    """Values, kind of number and shape; bit for bit where nothing is rounded."""
    ours = np.asarray(ours)
    assert ours.shape == tuple(theirs.shape)
    assert str(ours.dtype) == str(theirs.dtype).removeprefix("torch.")
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=within, atol=within, equal_nan=True)


def both(function: Callable[..., Any], *given: Any, within: float = 0.0) -> None:
    tensors = [torch.from_numpy(each) if isinstance(each, np.ndarray) else each for each in given]
    kept = [each.copy() if isinstance(each, np.ndarray) else each for each in given]
    same(function(*given), function(*tensors), within=within)
    for before, after in zip(kept, given, strict=True):
        np.testing.assert_equal(before, after, "what was given has changed")


@pytest.mark.parametrize("x_V", NASTY.values(), ids=NASTY)
def test_operations_on_rows(x_V: np.ndarray) -> None:
    size = len(x_V)
    both(arrays.softmax, x_V, within=1e-6)
    both(arrays.log_softmax, x_V, within=1e-5)
    both(arrays.softmax, np.stack([x_V, x_V[::-1]]), within=1e-6)
    both(arrays.log_softmax_at, np.stack([x_V, x_V[::-1]]), [0, size - 1], within=1e-5)
    both(lambda x: x.argmax(-1), np.stack([x_V, x_V[::-1]]))
    both(lambda x: x.max(), x_V)
    for count in {1, (size + 1) // 2, size}:
        both(arrays.least_of_top, x_V, count)
        ours, theirs = arrays.top(x_V, count), arrays.top(torch.from_numpy(x_V), count)
        assert sorted(ours[1].tolist()) == sorted(theirs[1].tolist())
        for x, (places, values) in ((x_V, ours), (torch.from_numpy(x_V), theirs)):
            assert len(set(places.tolist())) == count and x[places].tolist() == values.tolist()
        pair = np.stack([x_V, x_V[::-1]])
        ours, theirs = arrays.best(pair, count), arrays.best(torch.from_numpy(pair), count)
        same(ours[1], theirs[1])
        assert np.take_along_axis(pair, ours[0], axis=1).tolist() == ours[1].tolist()
    share_V = np.asarray(torch.from_numpy(x_V).softmax(-1))
    for most in (0.0, 0.1, 0.5, 0.9, 0.999, 0.9999999):
        both(arrays.beyond, share_V, most)


def test_of_equal_tokens_the_first_are_kept() -> None:
    share_V = numbers(0.1, 0.3, 0.3, 0.3)
    assert arrays.beyond(share_V, 0.5).tolist() == [True, False, False, True]
    both(arrays.beyond, share_V, 0.5)


@pytest.mark.parametrize("x_V", [EMPTY, BROKEN], ids=["nothing", "not a number"])
@pytest.mark.filterwarnings("error")
def test_what_has_no_softmax(x_V: np.ndarray) -> None:
    both(arrays.softmax, x_V)
    both(arrays.log_softmax, x_V)
    both(arrays.log_softmax_at, x_V[None], [2])
    both(lambda x: x.argmax(-1), x_V)
    both(lambda x: x.max(), x_V)
    both(arrays.beyond, np.full(4, math.nan, dtype=np.float32), 0.5)


def test_the_other_operations() -> None:
    x_V, places_N, values_N = row(20), np.array([3, 1, 7]), row(3)
    both(arrays.float32, x_V.astype(np.float64))
    both(arrays.float32, x_V > 0)
    both(arrays.float64, x_V)
    both(arrays.copy, x_V)
    both(arrays.exp, x_V, within=1e-6)
    both(arrays.negative_log, np.abs(x_V), within=1e-6)
    both(arrays.choose, x_V > 0, x_V / 1.3, x_V * 1.3)
    both(arrays.fill, x_V, x_V > 1, -INFINITE)
    both(arrays.put, x_V, places_N, values_N)
    both(arrays.spread, values_N, places_N, 9, -INFINITE)
    both(arrays.repeat, x_V, 3)
    both(lambda *items: arrays.stack(items), x_V, x_V * 2)
    both(lambda *items: arrays.join(items), x_V[None], x_V[None] * 2)
    for rows in ([0], [1, 2], [0, 2], [0, 1, 2, 3]):
        both(arrays.pick_rows, np.stack([x_V + at for at in range(4)]), rows)
    for values in ([], [1, 1, 5]):
        both(lambda like, values=values: arrays.integers(values, like), x_V)
        both(lambda like, values=values: arrays.occurrences(values, like), x_V)
    both(lambda like: arrays.count_up(2, 9, like), x_V)
    both(lambda like: arrays.placed(np.arange(3) > 1, like), x_V)


@pytest.mark.filterwarnings("error")
def test_the_noise_has_the_same_bits_but_for_logarithms() -> None:
    words = RANDOM.integers(-(2**63), 2**63 - 1, 5000)
    shifts, multipliers = (30, 27, 31), (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 1)
    both(lambda each: arrays.mix(each, shifts, multipliers), words)
    both(arrays.uniform, words)
    both(arrays.uniform, np.array([0, -1, 2**63 - 1, -(2**63), 2047]))
    for seed, choice, position in ((0, 0, 0), (2**53 - 1, 3, 17), (5, 0, 10**6)):
        both(lambda tokens, key=(seed, choice, position): gumbel_of(tokens, *key), np.arange(5000), within=1e-12)
    both(
        lambda seeds, positions: gumbel_rows(seeds, positions, 300),
        np.array([1, 2**62]),
        np.array([0, 9]),
        within=1e-12,
    )


FILTERS = [
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.0, top_k=7),
    SamplingParams(temperature=1.3, top_p=0.8),
    SamplingParams(temperature=0.2, top_p=0.95),
    SamplingParams(temperature=1.0, min_p=0.1),
    SamplingParams(temperature=1.7, top_k=50, top_p=0.9, min_p=0.01),
    SamplingParams(temperature=0.9, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2),
    SamplingParams(repetition_penalty=0.8, presence_penalty=-0.3, logit_bias={3: 4.5, 8: -INFINITE}),
    SamplingParams(),
]


class Odd:
    """A grammar of every other token."""

    def allowed(self, written: Any) -> np.ndarray:
        return np.arange(1000) % 2 == 1

    def accepts(self, written: Any, tokens: Any) -> int:
        raise NotImplementedError


@pytest.mark.parametrize("params", FILTERS, ids=range(len(FILTERS)))
@pytest.mark.parametrize("grammar", [None, Odd()], ids=["free", "grammar"])
def test_the_same_draws(params: SamplingParams, grammar: Odd | None) -> None:
    for seed in range(60):
        logits_V = row(int(RANDOM.integers(20, 900)), float(RANDOM.choice([0.5, 3.0, 10.0])))
        before = RANDOM.integers(0, 950, 30).tolist()
        how = {"seed": seed, "choice": 1, "grammar": grammar}
        tensor_V = torch.from_numpy(logits_V)
        ours = perturbed_scores(logits_V, params, before, 10, **how)
        theirs = perturbed_scores(tensor_V, params, before, 10, **how)
        same(ours, theirs, within=1e-5)
        drawn = draw(tensor_V, params, before, 10, **how)
        assert draw(logits_V, params, before, 10, **how) == drawn
        sequence = Sequence(before[:10], replace(params, seed=seed), Autoregressive(), frozenset(), 99, choice=1)
        sequence.grammar = grammar
        assert drawer(logits_V[None], sequence)(0, before) == drawer(tensor_V[None], sequence)(0, before) == drawn
        among_N = RANDOM.permutation(len(logits_V))[:15]
        assert draw_among(among_N, logits_V, sequence, before) == draw_among(
            torch.from_numpy(among_N), tensor_V, sequence, before
        )
        proposed = RANDOM.integers(0, len(logits_V), 4).tolist()
        assert best_or_tolerated(ours, proposed, 0.9) == best_or_tolerated(theirs, proposed, 0.9)
        assert confidence(logits_V[None], [drawn]) == pytest.approx(confidence(tensor_V[None], [drawn]), rel=1e-5)
        best, other = likeliest(logits_V[None], 5)[0], likeliest(tensor_V[None], 5)[0]
        assert [token for token, _ in best] == [token for token, _ in other]


@pytest.mark.parametrize("x_V", NASTY.values(), ids=NASTY)
@pytest.mark.parametrize("params", FILTERS[:6], ids=range(6))
def test_filters_of_nasty_rows(x_V: np.ndarray, params: SamplingParams) -> None:
    both(lambda each: keep_likely(each, params), x_V)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("decoder", DECODERS)
def test_the_same_answers(decoder: str, temperature: float, roomy_model: LanguageModel) -> None:
    """Every decoder, masks and heads and a draft model behind numpy arrays: not one tensor reaches decoding."""
    native = LanguageModel(as_numpy(roomy_model.twin().loaded), roomy_model.settings)
    params = SamplingParams(max_tokens=40, temperature=temperature, top_p=0.95, seed=11)
    settings = DecodeSettings(decoder, threshold=0.0) if decoder == "adaptive" else DecodeSettings(decoder)
    for prompt in ("abcabcabc", "The quick brown fox"):
        ours = native.generate(prompt, params, decoder=settings, raw=True)
        theirs = roomy_model.generate(prompt, params, decoder=settings, raw=True)
        assert ours.token_ids == theirs.token_ids
        if decoder in ("draft", "ngram", "adaptive", "static"):  # the others look at the clock
            assert (ours.stats.drafted, ours.stats.forwards) == (theirs.stats.drafted, theirs.stats.forwards)
        sure, other = ([each for stride in result.strides for each in stride.confidence] for result in (ours, theirs))
        assert sure == pytest.approx(other, rel=1e-3)


def test_its_cost_is_measured(roomy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stridelm.decode.cost._BUDGET", 0.05)
    cost, _ = measure(as_numpy(roomy_model.twin().loaded).forward)
    assert cost.seconds[0] > 0 and cost.head > 0


@pytest.mark.parametrize("library", ["torch", "transformers"])
def test_decoding_is_imported_without(library: str) -> None:
    """They take seconds; a native backend needs neither."""
    modules = "stridelm, stridelm.api, stridelm.engine.engine, stridelm.decode.table"
    code = f"import sys, {modules}; sys.exit({library!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
