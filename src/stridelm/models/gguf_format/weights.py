"""The weights of a GGUF file by transformers' names, converted when they are asked for: a model is never in memory as a
whole because its file was opened."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from stridelm.models.fingerprint import PickedWeights
from stridelm.models.gguf_format.architecture import Architecture, Shapes
from stridelm.models.gguf_format.metadata import GgufConfig
from stridelm.params import InputError

_PART = 2**22
"""Number of values converted at a time."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight as the file has it."""

    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    data: np.ndarray
    """Rows of numbers or of bytes: a view of the file."""
    heads: int | None = None
    """If its rows have to be reordered: the number of heads that they belong to."""
    shift: float = 0.0
    """What is added to its values."""

    @property
    def rows(self) -> np.ndarray:
        """The rows in transformers' order; a view of the file, if that is the file's order."""
        return self.data if self.heads is None else _split_halves(self.data, self.heads)

    def values(self, rows: np.ndarray) -> np.ndarray:
        """The values of some of the rows, in float32."""
        values = gguf.dequantize(rows, self.kind).astype(np.float32, copy=False)
        return values + np.float32(self.shift) if self.shift else values


class GgufWeights(PickedWeights):
    """Weight by weight in float32. Each access converts anew."""

    def __init__(self, weights: Mapping[str, StoredWeight]) -> None:
        self.stored = weights

    def __len__(self) -> int:
        return len(self.stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __contains__(self, name: object) -> bool:
        return name in self.stored

    def __getitem__(self, name: str) -> np.ndarray:
        weight = self.stored[name]
        array = np.empty(weight.shape, np.float32)
        for place, values in self.parts(name):
            array.reshape(-1, weight.shape[-1])[place] = values
        return array

    def shape(self, name: str) -> tuple[int, ...]:
        return self.stored[name].shape

    def parts(self, name: str) -> Iterator[tuple[slice, np.ndarray]]:
        """A weight in parts: which rows, and their values."""
        weight = self.stored[name]
        rows = weight.rows
        size = max(1, _PART // weight.shape[-1])
        for start in range(0, len(rows), size):
            place = slice(start, start + size)
            yield place, weight.values(rows[place])

    def every(self, name: str, step: int) -> np.ndarray:
        weight = self.stored[name]
        columns = weight.shape[-1]
        picked = np.arange(0, len(weight.rows) * columns, step)
        rows, at = np.unique(picked // columns, return_inverse=True)
        return weight.values(weight.rows[rows])[at, picked % columns]

    def rows(self, name: str, chosen: np.ndarray) -> np.ndarray:
        weight = self.stored[name]
        return weight.values(weight.rows[chosen])


def find_weights(
    path: Path, architecture: Architecture, config: GgufConfig, tensors: Mapping[str, gguf.ReaderTensor]
) -> dict[str, StoredWeight]:
    """The weights that a file's tensors hold."""
    found: dict[str, StoredWeight] = {}
    for name, tensor in tensors.items():
        if name not in architecture.setting_tensors:
            found |= _weights_of(path, architecture, config, tensor)
    return found


def _weights_of(
    path: Path, architecture: Architecture, config: GgufConfig, tensor: gguf.ReaderTensor
) -> dict[str, StoredWeight]:
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", tensor.name)
    layer, module, part = match.groups() if match else (None, "", "")
    prefix = f"model.layers.{layer}." if layer is not None else ""
    shape = tuple(int(count) for count in reversed(tensor.shape))
    if module in architecture.expert_tensors and len(shape) == 3 and shape[0] == config.num_experts:
        name = architecture.expert_tensors[module]
        return {
            f"{prefix}{name.format(expert=number)}.{part}": StoredWeight(shape[1:], tensor.tensor_type, data)
            for number, data in enumerate(tensor.data)
        }
    if module not in architecture.names or len(shape) not in (1, 2):
        raise InputError(
            f"{path}: the tensor {tensor.name!r} is not known for {architecture.model_type}: use the model's Hugging "
            "Face folder instead"
        )
    heads = None
    if architecture.reorders_heads and module in ("attn_q", "attn_k") and len(shape) == 2:
        heads = config.num_attention_heads if module == "attn_q" else config.num_key_value_heads
    shift = -1.0 if architecture.adds_one_to_norms and module.endswith("norm") else 0.0
    data = tensor.data if len(shape) == 2 else tensor.data.reshape(1, -1)
    name = f"{prefix}{architecture.names[module]}.{part}"
    return {name: StoredWeight(shape, tensor.tensor_type, data, heads, shift)}


def _split_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp rotates neighbouring pairs of a head, transformers its two halves: reorder the rows accordingly."""
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def check_weights(path: Path, config: GgufConfig, weights: Mapping[str, StoredWeight], expected: Shapes) -> None:
    """Exactly the model's weights are there, in the right shapes."""
    missing = sorted(expected.keys() - weights.keys())
    if missing:
        raise InputError(f"{path}: the weight {missing[0]} is missing ({len(missing)} in all): fetch the file again")
    for name, weight in weights.items():
        if name not in expected:
            raise InputError(
                f"{path}: the weight {name} is more than {config.model_type} models have: use the model's Hugging Face "
                "folder instead"
            )
        if weight.shape != expected[name]:
            raise InputError(
                f"{path}: the weight {name} is of shape {weight.shape}, but the settings say {expected[name]}: fetch "
                "the file again"
            )


def check_kinds(path: Path, tensors: Mapping[str, gguf.ReaderTensor]) -> None:
    """Refuse tensors that are stored as the package gguf cannot read them."""
    for tensor in {tensor.tensor_type: tensor for tensor in tensors.values()}.values():
        try:
            gguf.dequantize(tensor.data.reshape(-1, tensor.data.shape[-1])[:1], tensor.tensor_type)
        except NotImplementedError as error:
            raise InputError(
                f"{path}: {tensor.name} is stored as {tensor.tensor_type.name}, which is not supported: use a file "
                "with another quantisation, or the model's Hugging Face folder"
            ) from error
