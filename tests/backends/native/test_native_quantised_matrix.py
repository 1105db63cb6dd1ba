"""Weights in groups: the numbers of GGUF blocks bit for bit, quantised ones as near as can be, and their packing."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Stored
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gguf_models import RANDOM_KINDS, random_blocks
from stridelm.backends.native import quantised_matrix
from stridelm.backends.native.block_matrix import BITS, FIVE, SIX_K, BlockMatrix, block_bytes, groups_of
from stridelm.backends.native.quantised_matrix import (
    EIGHT,
    FOUR,
    GROUP,
    Groups,
    QuantisedMatrix,
    concatenate,
    from_blocks,
    interleave_panels,
    pack_panels,
    packed_bytes,
    quantise,
)

KINDS = [Stored.Q4_0, Stored.Q4_1, Stored.Q8_0]
BLOCKS = sorted(RANDOM_KINDS & {Stored[kind] for kind in quantised_matrix.KINDS})
FINITE = st.floats(-1e4, 1e4, width=32)
MATRICES = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 9), st.integers(1, 70)), elements=FINITE, fill=st.just(0.0)
)


def random_weight(outputs: int, inputs: int, seed: int = 0) -> np.ndarray:
    """Groups of very different sizes, one of them all zeros, one with a single value."""
    draw = np.random.default_rng([seed, outputs, inputs])
    weight = draw.normal(size=(outputs, inputs)) * 10.0 ** draw.uniform(-4, 3, size=(outputs, 1))
    weight[0, :GROUP] = 0
    weight[-1, -GROUP:] = 0
    weight[-1, -1] = 3.5
    return weight.astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 32), (7, 64), (33, 160), (2, 4096)])
def test_blocks_are_taken_bit_for_bit(kind: Stored, outputs: int, inputs: int) -> None:
    blocks = gguf.quantize(random_weight(outputs, inputs), kind)
    groups = from_blocks(kind.name, blocks)
    assert groups.kind == (EIGHT if kind == Stored.Q8_0 else FOUR)
    assert np.array_equal(groups.dequantise(), gguf.dequantize(blocks, kind))


@given(seed=st.integers(0, 2**32), kind=st.sampled_from(KINDS))
def test_any_bytes_are_the_blocks_that_gguf_reads(seed: int, kind: Stored) -> None:
    """Not only those that a quantiser writes: every nibble, -128, and scales of any size."""
    draw = np.random.default_rng(seed)
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = draw.integers(0, 256, size=(5, 3 * size), dtype=np.uint8)
    halves = draw.normal(size=(5, 3, 2)) * 10.0 ** draw.uniform(-4, 3, size=(5, 3, 2))
    count = 4 if kind == Stored.Q4_1 else 2
    blocks.reshape(5, 3, size)[..., :count] = halves.astype(np.float16).view(np.uint8)[..., :count]
    ours, theirs = from_blocks(kind.name, blocks).dequantise(), gguf.dequantize(blocks, kind)
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_keep_the_files_numbers(kind: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, whether they are taken at once or in pieces."""
    blocks = random_blocks(kind, 21, 768)
    groups, expected = from_blocks(kind.name, blocks), gguf.dequantize(blocks, kind)
    assert np.array_equal(groups.dequantise(), expected) and expected.std() > 0.3
    monkeypatch.setattr(quantised_matrix, "_PIECE", 4)
    assert np.array_equal(from_blocks(kind.name, blocks).dequantise(), expected)


@given(weight_OI=MATRICES)
def test_8_bits_are_within_half_a_step(weight_OI: np.ndarray) -> None:
    groups = quantise(weight_OI, EIGHT)
    inputs = weight_OI.shape[1]
    difference, filled = padded(groups.dequantise(), weight_OI)
    largest = np.abs(filled).max(axis=-1, keepdims=True)
    # Half a step, and what the scale loses in half precision: 2**-11 of it, times 127; below 2**-14 its own step.
    assert (difference <= largest / 254 * (1 + 2**-10) + largest * 2**-11 + 127 * 2**-25).all()
    assert not groups.dequantise()[:, inputs:].any()


@given(weight_OI=MATRICES)
def test_4_bits_are_within_half_a_step(weight_OI: np.ndarray) -> None:
    groups = quantise(weight_OI, FOUR)
    assert groups.minima_OG is not None
    difference, filled = padded(groups.dequantise(), weight_OI)
    low, high = filled.min(axis=-1, keepdims=True), filled.max(axis=-1, keepdims=True)
    lost = (np.abs(low) + (high - low)) * 2**-11 + 16 * 2**-25
    assert (difference <= (high - low) / 30 + 2 * lost).all()


def padded(floats: np.ndarray, weight_OI: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How far the groups are from a matrix that is filled up with zeros; and that one: O x G x 32."""
    filled = np.zeros_like(floats)
    filled[:, : weight_OI.shape[1]] = weight_OI
    by_group = (len(filled), -1, GROUP)
    return np.abs(floats - filled).reshape(by_group), filled.reshape(by_group)


@pytest.mark.parametrize("kind", [FOUR, EIGHT])
def test_what_half_precision_cannot_hold_stays_finite(kind: int) -> None:
    weight = np.zeros((3, 64), np.float32)
    weight[0, 0], weight[1, :2], weight[2, 0] = 3e38, (1e9, -1e9), 1e-30
    floats = quantise(weight, kind).dequantise()
    assert np.isfinite(floats).all()
    assert floats[0, 0] > 60000


@pytest.mark.parametrize("kind", [FOUR, EIGHT])
def test_quantising_again_changes_little_or_nothing(kind: int) -> None:
    """Whole numbers that already are on the grid are kept."""
    draw = np.random.default_rng(0)
    numbers = draw.integers(0, 16, size=(4, 64)) if kind == FOUR else draw.integers(-127, 128, size=(4, 64))
    weight = numbers.astype(np.float32)
    weight[:, 0::GROUP], weight[:, 1::GROUP] = (0, 15) if kind == FOUR else (127, -127)
    assert np.array_equal(quantise(weight, kind).dequantise(), weight)


def block_of(panels: np.ndarray, groups: BlockMatrix, lanes: int, output: int, block: int) -> list[float]:
    """The weights of an output in one block, read from packed bytes as blocks.h describes them, number by number."""
    panel, lane = divmod(output, lanes)
    held, kind = panels[panel, block].tobytes(), groups.kind
    halves = np.frombuffer(held[: 4 * lanes], np.float16).astype(np.float32)
    unit = np.frombuffer(held[: 4 * lanes], np.float32)[lane] if kind == SIX_K else halves[lane]
    header, size = (4 if kind == FIVE else 20) * lanes, BITS[kind] * 4 * lanes
    found = []
    for at in range(groups_of(kind) * GROUP):
        group, place = divmod(at, GROUP)
        quad, byte = divmod(place, 4)
        numbers = held[header + group * size :]
        number = numbers[4 * (quad // 2 * lanes + lane) + byte] >> 4 * (quad % 2) & 15
        upper = numbers[16 * lanes :]
        if BITS[kind] == 5:
            number |= (upper[4 * lane + byte] >> quad & 1) << 4
        elif kind == SIX_K:
            number |= (upper[4 * (quad // 4 * lanes + lane) + byte] >> 2 * (quad % 4) & 3) << 4
        scales = held[4 * lanes : header]
        if kind == FIVE:
            found.append(unit * number + halves[lanes + lane])
        elif kind == SIX_K:
            found.append(unit * np.int8(np.uint8(scales[at // 16 * lanes + lane])) * (number - 32))
        else:
            minimum = halves[lanes + lane] * scales[(8 + group) * lanes + lane]
            found.append(unit * scales[group * lanes + lane] * number + minimum)
    return found


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("kind", [Stored.Q5_1, Stored.Q4_K, Stored.Q5_K, Stored.Q6_K])
def test_packing_blocks_loses_nothing(kind: Stored, lanes: int) -> None:
    groups = from_blocks(kind.name, random_blocks(kind, 17, 512))
    assert isinstance(groups, BlockMatrix)
    panels = pack_panels(groups, lanes)
    blocks = 16 // groups_of(groups.kind)
    assert panels.shape == (-(-17 // lanes), blocks, block_bytes(groups.kind, lanes))
    assert panels.nbytes == packed_bytes(groups.kind, len(panels), 16, lanes)
    for output in (0, 7, 16):
        found = [weight for block in range(blocks) for weight in block_of(panels, groups, lanes, output, block)]
        assert np.array_equal(np.array(found, np.float32), groups.dequantise()[output])


def test_a_block_is_whole_cache_lines_and_hardly_longer_than_the_files() -> None:
    for kind in (Stored.Q4_K, Stored.Q5_K, Stored.Q6_K):
        groups = from_blocks(kind.name, random_blocks(kind, 1, 256))
        size = block_bytes(groups.kind, 16)
        assert size % 64 == 0 and size / 16 <= 1.03 * gguf.GGML_QUANT_SIZES[kind][1]


@pytest.mark.parametrize(("kind", "groups"), [(14, 12), (6, 8), (99, 8)])
def test_matrices_that_there_cannot_be_have_no_size(kind: int, groups: int) -> None:
    with pytest.raises(ValueError, match=f"{groups} groups of kind {kind}"):
        packed_bytes(kind, 1, groups, 16)


def any_groups(kind: int | Stored, outputs: int, inputs: int, seed: int) -> Groups:
    if isinstance(kind, Stored):
        return from_blocks(kind.name, random_blocks(kind, outputs, inputs, seed=seed))
    return quantise(random_weight(outputs, inputs, seed=seed), kind)


def unpacked(panels: np.ndarray, kind: int, lanes: int, outputs: int) -> QuantisedMatrix:
    """What packed bytes say, read as tiles.h describes them, number by number."""
    count = panels.shape[1]
    numbers = np.zeros((panels.shape[0] * lanes, count, GROUP), np.uint8 if kind == FOUR else np.int8)
    scales, minima = (np.zeros((panels.shape[0] * lanes, count), np.float16) for _ in range(2))
    for output in range(panels.shape[0] * lanes):
        panel, lane = divmod(output, lanes)
        for group in range(count):
            held = panels[panel, group].tobytes()
            for at in range(GROUP):
                if kind == FOUR:
                    both = held[4 * (at // 8 * lanes + lane) + at % 4]
                    numbers[output, group, at] = both >> 4 if at % 8 >= 4 else both & 15
                else:
                    numbers[output, group, at] = held[4 * (at // 4 * lanes + lane) + at % 4] - 128
            behind = held[(16 if kind == FOUR else 32) * lanes :]
            scales[output, group] = np.frombuffer(behind, np.float16)[lane]
            if kind == FOUR:
                minima[output, group] = np.frombuffer(behind, np.float16)[lanes + lane]
    assert not scales[outputs:].any(), "what fills a panel is zero"
    return QuantisedMatrix(numbers[:outputs], scales[:outputs], minima[:outputs] if kind == FOUR else None)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("kind", [FOUR, EIGHT])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 32), (17, 40), (24, 96)])
def test_packing_loses_nothing(outputs: int, inputs: int, kind: int, lanes: int) -> None:
    groups = quantise(random_weight(outputs, max(inputs, GROUP))[:, :inputs], kind)
    panels = pack_panels(groups, lanes)
    assert panels.shape == (-(-outputs // lanes), -(-inputs // GROUP), lanes * (20 if kind == FOUR else 34))
    found = unpacked(panels, kind, lanes, outputs)
    assert np.array_equal(found.numbers_OGX, groups.numbers_OGX)
    assert np.array_equal(found.dequantise(), groups.dequantise())


@pytest.mark.parametrize("kind", [FOUR, EIGHT, Stored.Q5_0, Stored.Q4_K, Stored.Q6_K])
def test_matrices_one_behind_the_other(kind: int | Stored) -> None:
    parts = [any_groups(kind, outputs, 256, seed=outputs) for outputs in (16, 5, 3)]
    whole = concatenate(parts)
    assert whole.kind == parts[0].kind and whole.outputs == 24
    assert np.array_equal(whole.dequantise(), np.concatenate([part.dequantise() for part in parts]))


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("kind", [FOUR, EIGHT, Stored.Q5_0, Stored.Q4_K, Stored.Q6_K])
@pytest.mark.parametrize("outputs", [16, 20, 48])
def test_matrices_in_turn(outputs: int, kind: int | Stored, lanes: int) -> None:
    gate, up = (any_groups(kind, outputs, 256, seed=seed) for seed in (1, 2))
    floats = interleave_panels(gate, up, lanes).dequantise().reshape(-1, 2, lanes, 256)
    for place, part in enumerate((gate, up)):
        found = floats[:, place].reshape(-1, 256)
        assert np.array_equal(found[:outputs], part.dequantise())
        assert not found[outputs:].any()
