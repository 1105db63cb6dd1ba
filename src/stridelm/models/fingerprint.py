"""Fingerprints of weights: they identify the base model that adapters, heads and draft models were trained on."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

_VALUES = 128
"""Approximate number of values read per tensor."""


def fingerprint(weights: "Mapping[str, torch.Tensor] | Mapping[str, np.ndarray]") -> str:
    """A digest of each tensor's name, shape and about a hundred of its values, as float32. It is the same if a model is
    stored as float32 or, without loss, as bfloat16, and differs after any training."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        weight = weights[name]  # one at a time: they may be dequantised here
        values = weight.reshape(-1)
        picked = values[:: max(1, len(values) // _VALUES)]
        digest.update(f"{name} {tuple(weight.shape)}\n".encode())
        digest.update(as_floats(picked).tobytes())
    return digest.hexdigest()


def as_floats(weight: "torch.Tensor | np.ndarray") -> np.ndarray:
    """In float32, as numpy has it."""
    return weight.astype(np.float32, copy=False) if isinstance(weight, np.ndarray) else weight.float().numpy()


def fingerprint_of(folder: Path) -> str:
    """The fingerprint of a Hugging Face folder. Reads only the values that it needs."""
    from stridelm.models.store import map_weights, weight_files

    return fingerprint(map_weights(weight_files(folder)))
