"""Weights in groups of 32 inputs that share a scale: from GGUF blocks as they are, or quantised here; and their packing
for the kernels (products.h describes the order).

Shape letters: O outputs, G groups of 32 inputs, P panels, L outputs of a panel.
"""

from dataclasses import dataclass

import numpy as np

GROUP = 32
FOUR, EIGHT = 4, 8
_MAX_HALF = 65504.0


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

    def rows(self, chosen: slice | np.ndarray) -> "QuantisedMatrix":
        """Some of the outputs, in the given order."""
        minima = None if self.minima_OG is None else self.minima_OG[chosen]
        return QuantisedMatrix(self.numbers_OGX[chosen], self.scales_OG[chosen], minima)

    def dequantise(self) -> np.ndarray:
        """O x inputs, in float32."""
        values = self.numbers_OGX.astype(np.float32) * self.scales_OG.astype(np.float32)[..., None]
        if self.minima_OG is not None:
            values += self.minima_OG.astype(np.float32)[..., None]
        return values.reshape(len(values), -1)


def from_blocks(kind: str, blocks: np.ndarray, inputs: int) -> QuantisedMatrix:
    """From a GGUF tensor of kind Q4_0, Q4_1 or Q8_0. `blocks`: its rows as bytes."""
    size = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}[kind]
    bytes_OGB = blocks.reshape(blocks.shape[0], inputs // GROUP, size)
    scales_OG = bytes_OGB[..., :2].copy().view(np.float16)[..., 0]
    if kind == "Q8_0":
        return QuantisedMatrix(bytes_OGB[..., 2:].view(np.int8), scales_OG, None)
    first = 4 if kind == "Q4_1" else 2
    nibbles = bytes_OGB[..., first:]
    numbers = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1)
    if kind == "Q4_1":
        return QuantisedMatrix(numbers, scales_OG, bytes_OGB[..., 2:4].copy().view(np.float16)[..., 0])
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


def concatenate(parts: list[QuantisedMatrix]) -> QuantisedMatrix:
    """Matrices with the same input as one matrix. All are of the same kind."""
    minima = [part.minima_OG for part in parts if part.minima_OG is not None]
    return QuantisedMatrix(
        np.concatenate([part.numbers_OGX for part in parts]),
        np.concatenate([part.scales_OG for part in parts]),
        np.concatenate(minima) if minima else None,
    )


def interleave_panels(first: QuantisedMatrix, second: QuantisedMatrix, lanes: int) -> QuantisedMatrix:
    """Two matrices, their panels alternating, each padded to whole panels."""
    panels = -(-first.outputs // lanes)
    order = np.arange(panels * lanes).reshape(panels, lanes)
    both = concatenate([_pad_outputs(first, panels * lanes), _pad_outputs(second, panels * lanes)])
    return both.rows(np.stack([order, order + panels * lanes], axis=1).ravel())


def _pad_outputs(groups: QuantisedMatrix, outputs: int) -> QuantisedMatrix:
    def fill(array: np.ndarray) -> np.ndarray:
        return np.pad(array, [(0, outputs - array.shape[0])] + [(0, 0)] * (array.ndim - 1))

    minima = None if groups.minima_OG is None else fill(groups.minima_OG)
    return QuantisedMatrix(fill(groups.numbers_OGX), fill(groups.scales_OG), minima)


def pack_panels(groups: QuantisedMatrix, lanes: int) -> np.ndarray:
    """The bytes that the kernels read: P x G x bytes of a group."""
    panels = -(-groups.outputs // lanes)
    filled = _pad_outputs(groups, panels * lanes)
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
