"""Weights as numpy arrays in float32, without torch: those of safetensors files (numpy itself has no bfloat16), and
those that are made when they are asked for."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

from stridelm.params import InputError

_DTYPES = {"F32": np.float32, "F16": np.float16}
Chosen = slice | np.ndarray
"""Rows of a weight, in the given order."""


def read_arrays(files: list[Path]) -> dict[str, np.ndarray]:
    """All tensors of these files."""
    arrays: dict[str, np.ndarray] = {}
    for file in files:
        try:
            for name, stored in deserialize(file.read_bytes()):
                arrays[name] = _array(stored)
        except (SafetensorError, OSError, ValueError) as error:
            raise InputError(
                f"{file}: cannot be read as safetensors ({error}). It may be cut off: fetch it again"
            ) from error
    return arrays


def _array(stored: dict[str, Any]) -> np.ndarray:
    kind, shape = stored["dtype"], stored["shape"]
    if kind == "BF16":  # the upper half of a float32
        upper = np.frombuffer(stored["data"], np.uint16).astype(np.uint32) << 16
        return upper.view(np.float32).reshape(shape)
    if kind not in _DTYPES:
        raise ValueError(f"numbers of kind {kind}")
    return np.frombuffer(stored["data"], _DTYPES[kind]).astype(np.float32).reshape(shape)


@dataclass(frozen=True, slots=True)
class LazyWeight:
    shape: tuple[int, ...]
    make: Callable[[Chosen], np.ndarray]
    """Makes some of its rows."""


class LazyWeights(Mapping[str, np.ndarray]):
    """Weights that are made when they are asked for, one at a time, and not kept: in float32 a large model's do not fit
    into memory."""

    def __init__(self, made: Mapping[str, LazyWeight]) -> None:
        self._made = made

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: weight.shape for name, weight in self._made.items()}

    def rows(self, name: str, chosen: Chosen) -> np.ndarray:
        return self._made[name].make(chosen)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.rows(name, slice(None))

    def __contains__(self, name: object) -> bool:
        return name in self._made

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)
