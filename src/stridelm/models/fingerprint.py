"""Fingerprints of weights: they identify the base model that adapters, heads and draft models were trained on."""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stridelm.models.weight_arrays import LazyWeights

if TYPE_CHECKING:
    import torch

_VALUES = 128
"""Approximate number of values read per tensor."""


def fingerprint(weights: "Mapping[str, torch.Tensor] | Mapping[str, np.ndarray]") -> str:
    """A digest of each tensor's name, shape and about a hundred of its values, as float32. It is the same if a model is
    stored as float32 or, without loss, as bfloat16, and differs after any training."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        shape, picked = _pick(weights, name)
        digest.update(f"{name} {shape}\n".encode())
        digest.update(as_floats(picked).tobytes())
    return digest.hexdigest()


def _pick(
    weights: "Mapping[str, torch.Tensor] | Mapping[str, np.ndarray]", name: str
) -> "tuple[tuple[int, ...], torch.Tensor | np.ndarray]":
    """A weight's shape, and its values at equal distances. Of lazy weights no other rows are made."""
    if isinstance(weights, LazyWeights):
        shape = weights.shapes[name]
        size, width = math.prod(shape), math.prod(shape[1:])
        rows, columns = np.divmod(np.arange(0, size, max(1, size // _VALUES)), width)
        made, at = np.unique(rows, return_inverse=True)
        return shape, weights.rows(name, made).reshape(len(made), width)[at, columns]
    values = weights[name].reshape(-1)
    return tuple(weights[name].shape), values[:: max(1, len(values) // _VALUES)]


def as_floats(weight: "torch.Tensor | np.ndarray") -> np.ndarray:
    """In float32, as numpy has it."""
    return weight.astype(np.float32, copy=False) if isinstance(weight, np.ndarray) else weight.float().numpy()


def fingerprint_of(folder: Path) -> str:
    """The fingerprint of a Hugging Face folder. Reads only the values that it needs."""
    from stridelm.models.store import map_weights, weight_files

    return fingerprint(map_weights(weight_files(folder)))
