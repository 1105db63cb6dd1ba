"""Weights in blocks, with exactly the numbers of GGUF's K-quants and 5-bit kinds, and their packing for the kernels
(blocks.h describes the order).

Shape letters: O outputs, G groups of 32 inputs, B blocks, S what has a scale, P panels, L outputs of a panel, C chunks.
"""

from dataclasses import dataclass

import numpy as np

GROUP = 32
FIVE, FOUR_K, FIVE_K, SIX_K = 5, 12, 13, 14
BITS = {FIVE: 5, FOUR_K: 4, FIVE_K: 5, SIX_K: 6}
_SIX_OFFSET = 32


@dataclass(frozen=True, slots=True)
class BlockMatrix:
    """A matrix of outputs x inputs. A weight is `unit * scale * number + minimum_unit * minimum`; of SIX_K it is
    `unit * scale * (number - 32)`."""

    kind: int
    numbers_OGX: np.ndarray
    """O x G x 32, in uint8."""
    units_OB: np.ndarray
    """Half precision."""
    minimum_units_OB: np.ndarray | None = None
    """Half precision; not of SIX_K."""
    scales_OS: np.ndarray | None = None
    """A byte per group, of SIX_K a signed one per half of a group; FIVE has none."""
    minima_OG: np.ndarray | None = None
    """A byte per group, of FOUR_K and FIVE_K."""

    @property
    def outputs(self) -> int:
        return self.numbers_OGX.shape[0]

    def dequantise(self) -> np.ndarray:
        """O x inputs, in float32."""
        outputs, groups, _ = self.numbers_OGX.shape
        scales_OS = self.units_OB.astype(np.float32)
        if self.scales_OS is not None:
            per_block = self.scales_OS.shape[1] // self.units_OB.shape[1]
            scales_OS = np.repeat(scales_OS, per_block, axis=1) * self.scales_OS
        values = self.numbers_OGX.astype(np.float32).reshape(outputs, scales_OS.shape[1], -1)
        if self.kind == SIX_K:
            values -= _SIX_OFFSET
        values *= scales_OS[..., None]
        if self.minimum_units_OB is not None:
            minima_OG = self.minimum_units_OB.astype(np.float32)
            if self.minima_OG is not None:
                minima_OG = np.repeat(minima_OG, groups // minima_OG.shape[1], axis=1) * self.minima_OG
            values += minima_OG[..., None]
        return values.reshape(outputs, -1)


def groups_of(kind: int) -> int:
    """Groups of a block."""
    return 1 if kind == FIVE else 8


def block_bytes(kind: int, lanes: int) -> int:
    """Bytes of a block of a panel."""
    return lanes * (4 if kind == FIVE else 20) + lanes * groups_of(kind) * BITS[kind] * 4


def unpack_5_bits(kind: str, bytes_OGB: np.ndarray) -> BlockMatrix:
    """Q5_0 or Q5_1: a scale, a minimum (Q5_1), the upper bits of 32 numbers, then their lower halves."""
    units_OG = _halves(bytes_OGB[..., :2])
    start = 4 if kind == "Q5_1" else 2
    upper = np.unpackbits(bytes_OGB[..., start : start + 4], axis=-1, bitorder="little")
    nibbles = bytes_OGB[..., start + 4 :]
    numbers = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1) | upper << 4
    # Sixteen times a scale is exact in half precision.
    minima_OG = _halves(bytes_OGB[..., 2:4]) if kind == "Q5_1" else units_OG * np.float16(-16)
    return BlockMatrix(FIVE, numbers, units_OG, minima_OG)


def unpack_4_or_5_bits(kind: str, bytes_OBX: np.ndarray) -> BlockMatrix:
    """Q4_K or Q5_K: d and e; 6-bit scales and minima; of Q5_K a plane of upper bits; the lower halves of 8 x 32."""
    outputs, blocks, _ = bytes_OBX.shape
    scales_OS, minima_OG = (part.reshape(outputs, -1) for part in _scales_and_minima(bytes_OBX[..., 4:16]))
    nibbles = bytes_OBX[..., -128:].reshape(outputs, blocks, 4, 32)
    numbers = np.stack([nibbles & 15, nibbles >> 4], axis=3).reshape(outputs, blocks, 8, 32)
    if kind == "Q5_K":
        numbers |= (bytes_OBX[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 4
    units_OB, minimum_units_OB = _halves(bytes_OBX[..., :2]), -_halves(bytes_OBX[..., 2:4])
    number_kind = FIVE_K if kind == "Q5_K" else FOUR_K
    return BlockMatrix(number_kind, numbers.reshape(outputs, -1, 32), units_OB, minimum_units_OB, scales_OS, minima_OG)


def _scales_and_minima(bytes_OBX: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight of each in twelve bytes: six bits of the first four, then four and two of the others."""
    first, second, rest = (bytes_OBX[..., at : at + 4] for at in (0, 4, 8))
    scales = np.concatenate([first & 63, rest & 15 | first >> 6 << 4], axis=-1)
    return scales, np.concatenate([second & 63, rest >> 4 | second >> 6 << 4], axis=-1)


def unpack_6_bits(bytes_OBX: np.ndarray) -> BlockMatrix:
    """Q6_K: the lower four bits of 2 x 4 x 32, the upper two, 16 signed scales, d."""
    outputs, blocks, _ = bytes_OBX.shape
    lower = bytes_OBX[..., :128].reshape(outputs, blocks, 2, 1, 64)
    lower = np.concatenate([lower & 15, lower >> 4], axis=3).reshape(outputs, blocks, 2, 4, 32)
    upper = bytes_OBX[..., 128:192].reshape(outputs, blocks, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    numbers = (lower | (upper & 3) << 4).reshape(outputs, -1, 32)
    scales_OS = bytes_OBX[..., 192:208].view(np.int8).reshape(outputs, -1)
    return BlockMatrix(SIX_K, numbers, _halves(bytes_OBX[..., 208:]), scales_OS=scales_OS)


def unpack_3_bits(bytes_OBX: np.ndarray) -> BlockMatrix:
    """Q3_K, as SIX_K, which has all its numbers: a plane of upper bits, the lower two of 2 x 4 x 32, 16 scales in 6
    bits, d."""
    outputs, blocks, _ = bytes_OBX.shape
    lower = bytes_OBX[..., 32:96].reshape(outputs, blocks, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    upper = bytes_OBX[..., None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    numbers = lower.reshape(outputs, blocks, 8, 32) + upper * np.uint8(4) + np.uint8(_SIX_OFFSET - 4)
    packed = bytes_OBX[..., 96:108]
    low = np.concatenate([packed[..., :8] & 15, packed[..., :8] >> 4], axis=-1)
    high = packed[..., None, 8:] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    scales = (low | high.reshape(outputs, blocks, 16) << 4).view(np.int8) - np.int8(32)
    units_OB = _halves(bytes_OBX[..., 108:])
    return BlockMatrix(SIX_K, numbers.reshape(outputs, -1, 32), units_OB, scales_OS=scales.reshape(outputs, -1))


def _halves(bytes_OBX: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(bytes_OBX).view(np.float16)[..., 0]


def pack_blocks(groups: BlockMatrix, lanes: int) -> np.ndarray:
    """The bytes that the kernels read: P x B x bytes of a block. The outputs are whole panels."""
    panels, blocks = groups.outputs // lanes, groups.units_OB.shape[1]
    numbers_PLGCX = groups.numbers_OGX.reshape(panels, lanes, -1, 8, 4)
    pairs = numbers_PLGCX & 15
    vectors = [pairs[..., 0::2, :] | pairs[..., 1::2, :] << 4]
    if (width := BITS[groups.kind] - 4) > 0:
        shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
        upper = (numbers_PLGCX >> 4).reshape(panels, lanes, numbers_PLGCX.shape[2], width, 8 // width, 4)
        vectors.append(np.bitwise_or.reduce(upper << shifts, axis=-2))
    numbers = np.concatenate(vectors, axis=3).transpose(0, 2, 3, 1, 4)
    parts = [*_header(groups, lanes), np.ascontiguousarray(numbers)]
    return np.concatenate([part.view(np.uint8).reshape(panels, blocks, -1) for part in parts], axis=-1)


def _header(groups: BlockMatrix, lanes: int) -> list[np.ndarray]:
    def by_panel(array_OX: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array_OX.reshape(-1, lanes, array_OX.shape[1]).transpose(0, 2, 1))

    units = groups.units_OB if groups.minimum_units_OB is not None else groups.units_OB.astype(np.float32)
    if groups.kind == FIVE:
        assert groups.minimum_units_OB is not None
        return [by_panel(units), by_panel(groups.minimum_units_OB)]
    given = (units, groups.minimum_units_OB, groups.scales_OS, groups.minima_OG)
    return [by_panel(array) for array in given if array is not None]
