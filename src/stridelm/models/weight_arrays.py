"""Safetensors files as numpy arrays in float32, without torch: numpy itself has no bfloat16."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

from stridelm.params import InputError

_DTYPES = {"F32": np.float32, "F16": np.float16}


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
