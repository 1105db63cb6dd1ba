"""Fingerprints of weights: they identify the base model that adapters, heads and draft models were trained on."""

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

_VALUES = 128
"""Approximate number of values read per tensor."""


class PickedWeights(Mapping[str, np.ndarray]):
    """Weights that are converted when they are asked for, which takes long: a few of their values can be had alone."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]: ...

    @abstractmethod
    def every(self, name: str, step: int) -> np.ndarray:
        """Every so many values of a weight, read row after row."""

    @abstractmethod
    def rows(self, name: str, chosen: np.ndarray) -> np.ndarray:
        """Some rows of a matrix."""


def fingerprint(weights: "Mapping[str, torch.Tensor] | Mapping[str, np.ndarray]") -> str:
    """A digest of each tensor's name, shape and about a hundred of its values, as float32. It is the same if a model is
    stored as float32 or, without loss, as bfloat16, and differs after any training."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        if isinstance(weights, PickedWeights):
            shape = weights.shape(name)
            picked = weights.every(name, _step(int(np.prod(shape))))
        else:
            shape, values = tuple(weights[name].shape), weights[name].reshape(-1)
            picked = values[:: _step(len(values))]
        digest.update(f"{name} {shape}\n".encode())
        digest.update(as_floats(picked).tobytes())
    return digest.hexdigest()


def _step(size: int) -> int:
    return max(1, size // _VALUES)


def as_floats(weight: "torch.Tensor | np.ndarray") -> np.ndarray:
    """In float32, as numpy has it."""
    return weight.astype(np.float32, copy=False) if isinstance(weight, np.ndarray) else weight.float().numpy()


def fingerprint_of(folder: Path) -> str:
    """The fingerprint of a Hugging Face folder. Reads only the values that it needs."""
    from stridelm.models.store import map_weights, weight_files

    return fingerprint(map_weights(weight_files(folder)))
