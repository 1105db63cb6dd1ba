"""Llama 3's stretched rotary positions: a GGUF file has a factor for each frequency, transformers wants the four
numbers that the factors were computed from."""

import math
from typing import Any

import numpy as np

_LOW, _HIGH = 1.0, 4.0
"""Waves that fit into the original context less often are stretched by the whole factor, those that fit more often not
at all. All published models have these two."""


def llama3_parameters(factors: list[float], theta: float) -> dict[str, Any] | None:
    """transformers' parameters that give these factors; None if there are none."""
    given = np.array(factors)
    waves = 2 * math.pi * theta ** (np.arange(len(given)) / len(given))
    factor = round(float(given.max()), 4)  # written by division, it may be 8.000001
    between = np.flatnonzero((given > 1.001) & (given < 0.999 * factor))
    if not len(between):
        return None
    place = between[0]  # any of them tells how long the original context was
    share = (1 / given[place] - 1 / factor) / (1 - 1 / factor)
    original = round(float(waves[place] * (_LOW + share * (_HIGH - _LOW))))
    shares = ((original / waves - _LOW) / (_HIGH - _LOW)).clip(0, 1)
    if not np.allclose(1 / ((1 - shares) / factor + shares), given, rtol=1e-5, atol=0):
        return None
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": _LOW,
        "high_freq_factor": _HIGH,
        "original_max_position_embeddings": original,
    }
