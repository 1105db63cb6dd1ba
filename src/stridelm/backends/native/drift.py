"""How far the kernels' logits are from float32: from the same weights in float32 or, if they were quantised here, from
the original weights. Measured once, when a model is packed, and stated wherever exactness is claimed."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stridelm.arrays import log_softmax
from stridelm.backends.native.forward import NativeForward
from stridelm.backends.native.packed_file import ENTRIES, drift_key, read
from stridelm.backends.native.reference import reference_logits
from stridelm.backends.native.weights import ACTIVATIONS, make_weights
from stridelm.layout import lay_out, make_block
from stridelm.settings import KV_CACHES

TEXT = """The harbour was quiet when the last boat came in. Nobody had expected the storm to turn so quickly, and the
old keeper of the lighthouse wrote in his book that the wind had risen from 12 to 48 knots within an hour. If a boat
sails at 6 knots and the harbour is 15 miles away, how long does it take to come home? First, divide the distance by the
speed: 15 / 6 = 2.5, so it takes two and a half hours. def mean(numbers): return sum(numbers) / len(numbers)"""
_TOKENS = 160


@dataclass(frozen=True, slots=True)
class Drift:
    """Differences over the positions of a short text."""

    divergence: float
    """The mean Kullback-Leibler divergence from float32, in nats."""
    largest: float
    """The largest difference of a logit."""
    agreement: float
    """The share of positions with the same likeliest token."""


def measure_drift(
    folder: Path,
    lanes: int,
    config: Any,
    weights: Mapping[str, Any],
    tokenizer: Any,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Measure the drift for each kind of activations and KV cache, and add it to a packed folder's JSON file. `advance`
    is called after each layer."""
    ids = [token for token in tokenizer.encode(TEXT) if token < config.vocab_size][:_TOKENS]
    ids = ids[: int(config.max_position_embeddings)]
    expected = reference_logits(config, weights, ids, advance).astype(np.float64)
    packed = read(folder, lanes)
    assert packed is not None, "it was written a moment ago"
    drifts = {
        drift_key(activations, numbers): asdict(_drift(expected, _logits(packed, activations, numbers, ids)))
        for activations in ACTIVATIONS
        for numbers in KV_CACHES
    }
    file = folder / ENTRIES
    working = file.with_suffix(".working")
    working.write_text(json.dumps({**packed.notes, "drift": drifts}))
    working.replace(file)


def _logits(packed: Any, activations: str, cache_numbers: str, ids: list[int]) -> np.ndarray:
    forward = NativeForward(make_weights(packed, None, 0, activations), len(ids), cache_numbers)
    (output,) = forward(lay_out([make_block(0, ids, reads_all=True)]), [forward.cache.open()])
    return output.logits_WV.astype(np.float64)


def _drift(expected_WV: np.ndarray, actual_WV: np.ndarray) -> Drift:
    expected, actual = log_softmax(expected_WV), log_softmax(actual_WV)
    return Drift(
        divergence=float((np.exp(expected) * (expected - actual)).sum(axis=-1).mean()),
        largest=float(np.abs(expected_WV - actual_WV).max()),
        agreement=float((expected_WV.argmax(axis=-1) == actual_WV.argmax(axis=-1)).mean()),
    )
