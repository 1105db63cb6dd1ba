"""Products of the kernels, of both builds: near float64, and a row's bits the same whatever is beside it."""

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Stored

from gguf_models import random_blocks
from native import deviation
from stridelm.backends.native.block_matrix import FIVE, FIVE_K, FOUR_K, SIX_K
from stridelm.backends.native.library import Matrix
from stridelm.backends.native.quantised_matrix import EIGHT, FOUR, GROUP, Groups, from_blocks, pack_panels, quantise

SHAPES = [(1, 32), (8, 32), (16, 32), (17, 64), (5, 33), (40, 100), (70, 31), (129, 96), (250, 160), (3, 1), (40, 700)]
"""Outputs and inputs: on and off the borders of panels and groups."""
BLOCKS = {FIVE: Stored.Q5_1, FOUR_K: Stored.Q4_K, FIVE_K: Stored.Q5_K, SIX_K: Stored.Q6_K}
WEIGHTS = [FOUR, EIGHT, *BLOCKS]
KINDS = [(kind, activations) for activations in (16, 8) for kind in WEIGHTS]
"""Of weights, and bits of activations. With AVX2 alone 8-bit weights are multiplied by 16-bit rows in any case."""
BOUNDS = {16: 1e-4, 8: 2e-2}
"""What rounding may cost, relative to the largest output."""
ROWS = 200
COUNTS = [*range(1, 21), 64, ROWS]


class Packed:
    """A matrix as a build of the kernels takes it."""

    def __init__(self, kernels: Any, groups: Groups) -> None:
        self._kernels, self.groups = kernels, groups
        self._bytes = pack_panels(groups, kernels.stride_lanes())
        self.matrix = Matrix(self._bytes.ctypes.data, len(self._bytes), groups.numbers_OGX.shape[1], groups.kind)

    def product(self, x_XI: np.ndarray, activations: int, threads: int = 1) -> np.ndarray:
        filled = np.zeros((len(x_XI), self.matrix.groups * GROUP), np.float32)
        filled[:, : x_XI.shape[1]] = x_XI
        # With a guard behind the last row: nothing may be written there.
        y = np.full((len(x_XI) + 1, self.matrix.panels * self._kernels.stride_lanes()), 7, np.float32)
        self._kernels.stride_product(self.matrix, activations, threads, filled.ctypes.data, len(x_XI), y.ctypes.data)
        assert (y[-1] == 7).all()
        finite = np.isfinite(x_XI).all(axis=1)
        assert (y[:-1][finite, self.groups.outputs :] == 0).all(), "the outputs that fill a panel are zeros"
        return y[:-1, : self.groups.outputs]

    def unpacked(self, outputs: np.ndarray) -> np.ndarray:
        rows = np.full((len(outputs) + 1, self.matrix.groups * GROUP), 7, np.float32)
        outputs = np.ascontiguousarray(outputs, dtype=np.int64)
        self._kernels.stride_unpack(self.matrix, outputs.ctypes.data, len(outputs), rows.ctypes.data)
        assert (rows[-1] == 7).all()
        return rows[:-1]

    def exactly(self, x_XI: np.ndarray) -> np.ndarray:
        """In float64."""
        weight_OI = self.groups.dequantise().astype(np.float64)[:, : x_XI.shape[1]]
        return x_XI.astype(np.float64) @ weight_OI.T


def make(kernels: Any, outputs: int, inputs: int, kind: int, seed: int = 0) -> tuple[Packed, np.ndarray]:
    """A matrix, and rows of very different sizes; as those of blocks are whole, zeros are behind the rows."""
    draw = np.random.default_rng([seed, outputs, inputs, kind])
    if kind in BLOCKS:
        whole = -(-inputs // 256) * 256
        groups = from_blocks(BLOCKS[kind].name, random_blocks(BLOCKS[kind], outputs, whole, seed=seed))
    else:
        groups = quantise(draw.normal(size=(outputs, inputs)).astype(np.float32), kind)
    x_XI = draw.normal(size=(ROWS, inputs)) * 10.0 ** draw.uniform(-3, 3, size=(ROWS, 1))
    return Packed(kernels, groups), x_XI.astype(np.float32)


@pytest.mark.parametrize(("kind", "activations"), KINDS)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_products_are_near_float64(kernels: Any, outputs: int, inputs: int, kind: int, activations: int) -> None:
    matrix, x_XI = make(kernels, outputs, inputs, kind)
    actual, expected = matrix.product(x_XI, activations), matrix.exactly(x_XI)
    assert deviation(actual, expected) < BOUNDS[activations]
    # Row by row, relative to what a row of this size may give at most: small rows are as near as large ones.
    largest = np.abs(x_XI).sum(axis=1) * np.abs(matrix.groups.dequantise()).max()
    assert (np.abs(actual - expected).max(axis=1) < BOUNDS[activations] * largest).all()


def places(rows: int) -> Iterator[int]:
    """Where so many rows may be taken out of all: at the front, at the end, and between."""
    yield from sorted({0, (ROWS - rows) // 3, ROWS - rows})


@pytest.mark.parametrize(("kind", "activations"), KINDS)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 32), (40, 100), (129, 96), (250, 160), (20, 700)])
def test_a_rows_bits_do_not_depend_on_other_rows_or_threads(
    kernels: Any, outputs: int, inputs: int, kind: int, activations: int
) -> None:
    matrix, x_XI = make(kernels, outputs, inputs, kind)
    alone = np.concatenate([matrix.product(x_XI[row : row + 1], activations) for row in range(ROWS)])
    for threads in (1, 2, 3):
        for rows in COUNTS:
            for first in places(rows):
                together = matrix.product(x_XI[first : first + rows], activations, threads)
                assert np.array_equal(together, alone[first : first + rows]), (threads, rows, first)


@pytest.mark.parametrize(("kind", "activations"), KINDS)
def test_a_rows_bits_do_not_depend_on_its_place(kernels: Any, kind: int, activations: int) -> None:
    """One row at every place among others, at every small number of rows."""
    matrix, x_XI = make(kernels, 70, 96, kind)
    expected = matrix.product(x_XI[:1], activations)[0]
    for rows in range(2, 21):
        for place in range(rows):
            among = np.concatenate([x_XI[1 : place + 1], x_XI[:1], x_XI[place + 1 : rows]])
            assert np.array_equal(matrix.product(among, activations)[place], expected), (rows, place)


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_unpacked_rows_are_the_weights(kernels: Any, outputs: int, inputs: int, kind: int) -> None:
    matrix, _ = make(kernels, outputs, inputs, kind)
    order = np.random.default_rng(0).permutation(outputs)
    assert np.array_equal(matrix.unpacked(order), matrix.groups.dequantise()[order])
    assert matrix.unpacked(order[:0]).shape[0] == 0


@pytest.mark.parametrize(("kind", "activations"), KINDS)
def test_zeros_give_zeros(kernels: Any, kind: int, activations: int) -> None:
    matrix, x_XI = make(kernels, 40, 96, kind)
    assert not matrix.product(np.zeros_like(x_XI[:3]), activations).any()


@pytest.mark.parametrize(("kind", "activations"), KINDS)
@pytest.mark.parametrize("size", [1e30, -1e30, 1e-25, 3e-30])
def test_very_large_and_small_rows_are_as_near(kernels: Any, kind: int, activations: int, size: float) -> None:
    matrix, x_XI = make(kernels, 40, 96, kind)
    x_XI = (x_XI[:5] / np.abs(x_XI[:5]).max() * size).astype(np.float32)
    assert deviation(matrix.product(x_XI, activations), matrix.exactly(x_XI)) < BOUNDS[activations]


@pytest.mark.parametrize(("kind", "activations"), KINDS)
@pytest.mark.parametrize("size", [1e-33, 1e-36, 1e-40, 1e-45])
def test_what_is_too_small_counts_as_nothing(kernels: Any, kind: int, activations: int, size: float) -> None:
    """Denormal numbers, and those that have no reciprocal in float32: in all groups, and in one beside proper ones."""
    matrix, x_XI = make(kernels, 40, 96, kind)
    small = np.full((2, 96), size, np.float32)
    small[:, ::2] *= -1
    small[:, 5] = 0
    assert np.abs(matrix.product(small, activations)).max() < 1e-28
    mixed, without = x_XI[:2].copy(), x_XI[:2].copy()
    mixed[:, 32:64], without[:, 32:64] = small[:, 32:64], 0
    assert np.array_equal(matrix.product(mixed, activations), matrix.product(without, activations))


@pytest.mark.parametrize(("kind", "activations"), KINDS)
def test_one_huge_value_costs_its_own_group_only(kernels: Any, kind: int, activations: int) -> None:
    matrix, x_XI = make(kernels, 40, 96, kind)
    x_XI = x_XI[:3] / np.abs(x_XI[:3]).max(axis=1, keepdims=True)
    x_XI[1, 40] = 1e30
    actual, expected = matrix.product(x_XI, activations), matrix.exactly(x_XI)
    assert deviation(actual[1], expected[1]) < BOUNDS[activations]
    assert deviation(actual[[0, 2]], expected[[0, 2]]) < BOUNDS[activations]


def test_what_is_not_finite_stays_in_its_row(kernels: Any) -> None:
    """Nothing is said of such a row but that it crashes nobody and harms no other."""
    matrix, x_XI = make(kernels, 40, 96, FOUR)
    for bad in (np.nan, np.inf, -np.inf):
        changed = x_XI[:5].copy()
        changed[2, 7] = bad
        for activations in (16, 8):
            ours, theirs = matrix.product(changed, activations, 2), matrix.product(x_XI[:5], activations)
            assert np.array_equal(ours[[0, 1, 3, 4]], theirs[[0, 1, 3, 4]])


def test_both_builds_say_nearly_the_same() -> None:
    """They add up the same groups in the same order; 16 or 8 outputs at once make no difference."""
    from native import BUILDS, skip_without_kernels
    from stridelm.backends.common.compiler import compiled
    from stridelm.backends.native.library import LINK_FLAGS, SOURCE, bind

    skip_without_kernels()
    for kind, activations in KINDS:
        if (kind, activations) == (EIGHT, 8):
            continue  # AVX2 multiplies 16-bit rows instead
        results = []
        for flags in BUILDS.values():
            matrix, x_XI = make(bind(compiled(SOURCE, flags, LINK_FLAGS)), 70, 160, kind)
            results.append(matrix.product(x_XI, activations))
        assert np.array_equal(*results)


def test_structures_have_the_size_of_the_sources() -> None:
    """Matrix is four words in C++; a field more on one side alone would shift all that follow."""
    assert ctypes.sizeof(Matrix) == 32
