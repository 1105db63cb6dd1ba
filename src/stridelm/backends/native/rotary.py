"""The frequencies of rotary positions, as transformers computes them (in float32)."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

KNOWN = ("default", "linear", "llama3")


def frequencies(head_size: int, parameters: Mapping[str, Any]) -> np.ndarray:
    """Radians per position, for each pair of values in a head. `parameters`: a config's, of a type in KNOWN."""
    kind = parameters.get("rope_type", "default")
    theta = np.float32(parameters["rope_theta"])
    plain = np.float32(1) / theta ** (np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size))
    if kind == "linear":
        plain = plain / np.float32(parameters["factor"])
    if kind == "llama3":
        plain = _stretch(plain, parameters)
    return plain.astype(np.float32)


def _stretch(plain: np.ndarray, parameters: Mapping[str, Any]) -> np.ndarray:
    """Stretch long wavelengths by the factor, keep short ones, and interpolate in between (Llama 3.1)."""
    factor, old = parameters["factor"], parameters["original_max_position_embeddings"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    waves = 2 * math.pi / plain
    share = ((old / waves - low) / (high - low)).clip(0, 1).astype(np.float32)
    return (1 - share) * plain / np.float32(factor) + share * plain
