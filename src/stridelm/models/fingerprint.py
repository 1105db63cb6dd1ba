"""By what weights are known: adapters, heads and drafts name the base model that they were trained on by it."""

import hashlib
from pathlib import Path

import torch

from stridelm.models.store import map_weights, weight_files

_VALUES = 128
"""Per tensor, about."""


def fingerprint(weights: dict[str, torch.Tensor]) -> str:
    """A digest of every tensor's name, shape and some hundred of its values, as float32: the same whether a model is
    stored as float32 or, without loss, as bfloat16; another after any training."""
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        values = weight.flatten()
        picked = values[:: max(1, len(values) // _VALUES)].float().contiguous()
        digest.update(f"{name} {tuple(weight.shape)}\n".encode())
        digest.update(picked.numpy().tobytes())
    return digest.hexdigest()


def fingerprint_of(folder: Path) -> str:
    """The same of a Hugging Face folder, of which only the values that count are read."""
    return fingerprint(map_weights(weight_files(folder)))
