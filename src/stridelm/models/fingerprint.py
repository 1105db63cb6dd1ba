"""Fingerprints of weights: they identify the base model that adapters, heads and draft models were trained on."""

import hashlib
from pathlib import Path

import torch

from stridelm.models.store import map_weights, weight_files

_VALUES = 128
"""Approximate number of values read per tensor."""


def fingerprint(weights: dict[str, torch.Tensor]) -> str:
    """A digest of each tensor's name, shape and about a hundred of its values, as float32. It is the same if a model is
    stored as float32 or, without loss, as bfloat16, and differs after any training."""
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        values = weight.flatten()
        picked = values[:: max(1, len(values) // _VALUES)].float().contiguous()
        digest.update(f"{name} {tuple(weight.shape)}\n".encode())
        digest.update(picked.numpy().tobytes())
    return digest.hexdigest()


def fingerprint_of(folder: Path) -> str:
    """The fingerprint of a Hugging Face folder. Reads only the values that it needs."""
    return fingerprint(map_weights(weight_files(folder)))
