"""Weights in groups of 32 inputs that share a scale: from GGUF blocks as they are, or quantised here; and their packing
for the kernels (tiles.h describes the order). K-quants are in block_matrix.py.

Shape letters: O outputs, G groups of 32 inputs, P panels, L outputs of a panel.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import gguf
import numpy as np

from stridelm.backends.native.block_matrix import (
    BITS,
    GROUP,
    BlockMatrix,
    block_bytes,
    groups_of,
    pack_blocks,
    unpack_3_bits,
    unpack_4_or_5_bits,
    unpack_5_bits,
    unpack_6_bits,
)

FOUR, EIGHT = 4, 8
_MAX_HALF = 65504.0
_PIECE = 2048
"""Rows that are unpacked, quantised or packed at a time: what that takes is a multiple of the result."""
_IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
"""What the 4-bit numbers of an IQ4_NL block stand for."""
KINDS = ("Q4_0", "Q4_1", "Q8_0", "Q5_0", "Q5_1", "IQ4_NL", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
"""The kinds of GGUF blocks that the kernels take with exactly the file's numbers."""


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """A matrix of outputs x inputs. A weight is `scale * number + minimum`."""

    numbers_OGX: np.ndarray
    """O x G x 32: 0 to 15 in uint8, or int8."""
    scales_OG: np.ndarray
    """Half precision, as GGUF files have them."""
    minima_OG: np.ndarray | None
    """Only of 4-bit groups; half precision."""

    @property
    def kind(self) -> int:
        return EIGHT if self.minima_OG is None else FOUR

    @property
    def outputs(self) -> int:
        return self.numbers_OGX.shape[0]

    def dequantise(self) -> np.ndarray:
        """O x inputs, in float32."""
        values = self.numbers_OGX.astype(np.float32) * self.scales_OG.astype(np.float32)[..., None]
        if self.minima_OG is not None:
            values += self.minima_OG.astype(np.float32)[..., None]
        return values.reshape(len(values), -1)


Groups = QuantisedMatrix | BlockMatrix


def from_blocks(kind: str, blocks: np.ndarray) -> Groups:
    """From a GGUF tensor of one of `KINDS`. `blocks`: its rows as bytes."""
    return by_pieces(blocks, lambda piece: _from_blocks(kind, piece))


def by_pieces(array: np.ndarray, make: Callable[[np.ndarray], Groups]) -> Groups:
    """A matrix made of some outputs at a time, so that what making takes is never as large as all of it."""
    parts = [make(array[start : start + _PIECE]) for start in range(0, len(array), _PIECE)]
    return parts[0] if len(parts) == 1 else concatenate(parts)


def _from_blocks(kind: str, blocks: np.ndarray) -> Groups:
    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    bytes_OGB = blocks.reshape(len(blocks), -1, size)
    if kind in ("Q5_0", "Q5_1"):
        return unpack_5_bits(kind, bytes_OGB)
    if kind in ("Q4_K", "Q5_K"):
        return unpack_4_or_5_bits(kind, bytes_OGB)
    if kind in ("Q6_K", "Q3_K"):
        return unpack_6_bits(bytes_OGB) if kind == "Q6_K" else unpack_3_bits(bytes_OGB)
    scales_OG = bytes_OGB[..., :2].copy().view(np.float16)[..., 0]
    if kind == "Q8_0":
        return QuantisedMatrix(bytes_OGB[..., 2:].view(np.int8), scales_OG, None)
    first = 4 if kind == "Q4_1" else 2
    nibbles = bytes_OGB[..., first:]
    numbers = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1)
    if kind == "Q4_1":
        return QuantisedMatrix(numbers, scales_OG, bytes_OGB[..., 2:4].copy().view(np.float16)[..., 0])
    if kind == "IQ4_NL":
        return QuantisedMatrix(_IQ4_NL[numbers], scales_OG, None)
    # Eight times a scale is exact in half precision.
    return QuantisedMatrix(numbers, scales_OG, scales_OG * np.float16(-8))


def quantise(weight_OI: np.ndarray, kind: int) -> QuantisedMatrix:
    """Round a float32 matrix to the nearest groups; inputs are padded with zeros to whole groups."""
    outputs, inputs = weight_OI.shape
    filled = np.zeros((outputs, -(-inputs // GROUP) * GROUP), np.float32)
    filled[:, :inputs] = weight_OI
    weight_OGX = filled.reshape(outputs, -1, GROUP)
    if kind == EIGHT:
        scales_OG = _half(np.abs(weight_OGX).max(axis=-1) / 127)
        numbers = _divide(weight_OGX, scales_OG).clip(-127, 127)
        return QuantisedMatrix(numbers.astype(np.int8), scales_OG, None)
    low_OG, high_OG = weight_OGX.min(axis=-1), weight_OGX.max(axis=-1)
    minima_OG, scales_OG = _half(low_OG), _half((high_OG - low_OG) / 15)
    numbers = _divide(weight_OGX - minima_OG.astype(np.float32)[..., None], scales_OG).clip(0, 15)
    return QuantisedMatrix(numbers.astype(np.uint8), scales_OG, minima_OG)


def _half(values: np.ndarray) -> np.ndarray:
    return values.clip(-_MAX_HALF, _MAX_HALF).astype(np.float16)


def _divide(weight_OGX: np.ndarray, scales_OG: np.ndarray) -> np.ndarray:
    """Divide and round to the nearest integers; 0 if the scale is 0."""
    scales = scales_OG.astype(np.float32)[..., None]
    return np.rint(np.divide(weight_OGX, scales, out=np.zeros_like(weight_OGX), where=scales != 0))


def concatenate(parts: Sequence[Groups]) -> Groups:
    """Matrices with the same input as one matrix. All are of the same kind."""
    assert len({part.kind for part in parts}) == 1
    arrays = [_arrays(part) for part in parts]
    return replace(parts[0], **{name: np.concatenate([each[name] for each in arrays]) for name in arrays[0]})


def rows_of(groups: Groups, chosen: slice | np.ndarray) -> Groups:
    """Some of the outputs, in the given order."""
    return replace(groups, **{name: array[chosen] for name, array in _arrays(groups).items()})


def _arrays(groups: Groups) -> dict[str, np.ndarray]:
    """All by which a matrix is stored; outputs are the first axis of each."""
    found = {field.name: getattr(groups, field.name) for field in fields(groups)}
    return {name: array for name, array in found.items() if isinstance(array, np.ndarray)}


def interleave_panels(first: Groups, second: Groups, lanes: int) -> Groups:
    """Two matrices, their panels alternating, each padded to whole panels."""
    panels = -(-first.outputs // lanes)
    order = np.arange(panels * lanes).reshape(panels, lanes)
    both = concatenate([_pad_outputs(first, panels * lanes), _pad_outputs(second, panels * lanes)])
    return rows_of(both, np.stack([order, order + panels * lanes], axis=1).ravel())


def _pad_outputs(groups: Groups, outputs: int) -> Groups:
    def fill(array: np.ndarray) -> np.ndarray:
        return np.pad(array, [(0, outputs - array.shape[0])] + [(0, 0)] * (array.ndim - 1))

    return replace(groups, **{name: fill(array) for name, array in _arrays(groups).items()})


def packed_bytes(kind: int, panels: int, groups: int, lanes: int) -> int:
    """The size of a packed matrix. Raises ValueError for one that there cannot be."""
    if kind in (FOUR, EIGHT):
        return panels * groups * lanes * (GROUP // 2 + 4 if kind == FOUR else GROUP + 2)
    if kind not in BITS or groups % groups_of(kind):
        raise ValueError(f"{groups} groups of kind {kind}")
    return panels * (groups // groups_of(kind)) * block_bytes(kind, lanes)


def pack_panels(groups: Groups, lanes: int) -> np.ndarray:
    """The bytes that the kernels read: P x G x bytes of a group, or P x B x bytes of a block."""
    panels = -(-groups.outputs // lanes)
    filled = _pad_outputs(groups, panels * lanes)
    if isinstance(filled, BlockMatrix):
        return pack_blocks(filled, lanes)
    numbers_PLGX = filled.numbers_OGX.reshape(panels, lanes, -1, GROUP)
    scales = [_by_panel(filled.scales_OG, lanes)]
    if filled.minima_OG is None:
        as_unsigned = numbers_PLGX.view(np.uint8) ^ np.uint8(128)
        chunks_PLGCX = as_unsigned.reshape(panels, lanes, -1, GROUP // 4, 4)
    else:
        halves = numbers_PLGX.reshape(panels, lanes, -1, GROUP // 8, 2, 4)
        chunks_PLGCX = halves[..., 0, :] | halves[..., 1, :] << np.uint8(4)
        scales.append(_by_panel(filled.minima_OG, lanes))
    numbers = chunks_PLGCX.transpose(0, 2, 3, 1, 4)
    count = numbers_PLGX.shape[2]
    as_bytes = [np.ascontiguousarray(part).view(np.uint8).reshape(panels, count, -1) for part in (numbers, *scales)]
    return np.concatenate(as_bytes, axis=-1)


def _by_panel(scales_OG: np.ndarray, lanes: int) -> np.ndarray:
    return scales_OG.reshape(-1, lanes, scales_OG.shape[1]).transpose(0, 2, 1)
