"""What GGUF files of single architectures may say: damage is refused in one line, and so is what is not supported."""

import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Stored

from gguf_models import load
from gguf_recorded import RECORDED_FILES, RecordedFile
from gguf_refused import assert_frugal, refusal, refused_without_much_memory
from stridelm.backends.native.rotary import frequencies
from stridelm.models.fingerprint import fingerprint
from stridelm.models.gguf import read_gguf
from stridelm.models.gguf_content import read_blocks, read_content
from stridelm.models.gguf_format.llama3_rope import llama3_parameters
from stridelm.params import InputError

NAMES = ["qwen3moe", "gemma2", "gemma3", "phi3, long texts"]


def file_of(name: str, *, blocks: bool = False) -> RecordedFile:
    return RECORDED_FILES[name].file(blocks=blocks)


@pytest.mark.parametrize("name", NAMES)
def test_missing_tensor_is_refused_whichever_it_is(name: str, tmp_path: Path) -> None:
    file = file_of(name)
    first_layer = [
        tensor for tensor in file.tensors if not tensor.startswith(("blk.1.", "blk.2.", "blk.3.", "output."))
    ]
    assert len(first_layer) >= 9
    for tensor in first_layer:
        rest = {other: found for other, found in file.tensors.items() if other != tensor}
        message = refusal(RecordedFile(file.architecture, file.settings, rest).write(tmp_path / "missing.gguf"))
        assert "missing" in message, tensor


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    ("name", "setting", "value", "said"),
    [
        ("qwen3moe", "expert_count", 2**31, "experts, but blk.0.ffn_gate_inp.weight is for 8"),
        ("qwen3moe", "expert_count", 0, "expert_count"),
        ("qwen3moe", "expert_used_count", 9, "9 of 8 experts"),
        ("qwen3moe", "expert_used_count", 0, "expert_used_count"),
        ("qwen3moe", "expert_feed_forward_length", 95, "of shape"),
        ("qwen3moe", "expert_weights_scale", 2.5, "expert_weights_scale is not supported"),
        ("gemma2", "attention.sliding_window", "five", "attention.sliding_window"),
        ("gemma2", "attention.sliding_window_pattern", 2.5, "attention.sliding_window_pattern"),
        ("gemma2", "attn_logit_softcapping", 0.0, "attn_logit_softcapping"),
        ("gemma2", "final_logit_softcapping", float("nan"), "final_logit_softcapping"),
        ("gemma2", "rope.freq_base_swa", 7.0, "another base"),
        ("gemma3", "attn_logit_softcapping", 50.0, "attn_logit_softcapping is not supported"),
        ("gemma3", "rope.freq_base_swa", -1.0, "rope.freq_base_swa"),
        ("gemma3", "rope.scaling.type", "yarn", "rope.scaling.type is not supported"),
        ("gemma3", "rope.scaling.factor", -8.0, "rope.scaling.factor"),
        ("phi3, long texts", "rope.dimension_count", 7, "7 rotary dimensions of 16"),
        ("phi3, long texts", "rope.dimension_count", 64, "64 rotary dimensions of 16"),
        ("phi3, long texts", "rope.dimension_count", 10, "does not hold 5 numbers"),
        ("phi3, long texts", "rope.scaling.original_context_length", 0, "original_context_length"),
        ("phi3, long texts", "rope.scaling.attn_factor", "big", "rope.scaling.attn_factor"),
        ("phi3, long texts", "rope.scaling.type", "yarn", "'yarn'"),
        ("phi3, long texts", "rope.scaling.factor", 4.0, "phi3"),
    ],
)
def test_damaged_or_unsupported_setting_is_refused_at_once(
    name: str, setting: str, value: object, said: str, tmp_path: Path
) -> None:
    file = file_of(name)
    file.settings[f"{file.architecture}.{setting}"] = value
    assert said in refused_without_much_memory(file.write(tmp_path / "damaged.gguf"))


@pytest.mark.parametrize("numbers", [np.ones(6), np.ones(5, np.float32), -np.ones(6, np.float32)])
def test_damaged_rotary_factors_are_refused(numbers: np.ndarray, tmp_path: Path) -> None:
    file = file_of("phi3, long texts")
    kind = Stored.F64 if numbers.dtype == np.float64 else Stored.F32
    file.tensors["rope_factors_long.weight"] = numbers, kind
    assert "rope_factors_long.weight" in refusal(file.write(tmp_path / "damaged.gguf"))


@pytest.mark.parametrize("other", [[1, 2, 3, 4, 5, 6, 7, 8], [8] * 8, [1, 1, 1, 1, 1, 1, 1, 8]])
def test_rotary_factors_that_are_not_llama_3s_are_refused(other: list[float], tmp_path: Path) -> None:
    file = file_of("llama, Llama 3's positions")
    file.tensors["rope_freqs.weight"] = np.array(other, np.float32), Stored.F32
    assert "rope_freqs.weight with other factors" in refusal(file.write(tmp_path / "other.gguf"))


def test_parameters_of_published_llama_3s_are_found() -> None:
    for factor, theta, size in ((8.0, 500_000.0, 128), (32.0, 500_000.0, 64)):
        rope = {"rope_type": "llama3", "rope_theta": theta, "factor": factor, "low_freq_factor": 1.0}
        rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
        plain = theta ** -(np.arange(0, size, 2) / size)
        stretched = frequencies(size, rope)
        assert llama3_parameters((plain / stretched).astype(np.float32).tolist(), theta) == rope


def test_context_is_what_the_short_factors_are_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = load(file_of("phi3, long texts").write(tmp_path / "small.gguf"))
    assert checkpoint.context_length == 256
    assert "texts of up to 256 tokens" in caplog.text


@pytest.mark.parametrize("blocks", [False, True], ids=["float32", "K-quants"])
@pytest.mark.parametrize("name", NAMES)
def test_cut_off_file_is_refused(name: str, blocks: bool, tmp_path: Path) -> None:
    path = file_of(name, blocks=blocks).write(tmp_path / "cut.gguf")
    data = path.read_bytes()
    for end in (len(data) * part // 8 for part in range(8)):
        path.write_bytes(data[:end])
        assert "It may be cut off or damaged: fetch it again" in refusal(path)


def _info(path: Path, name: str) -> tuple[int, int, int]:
    """Where the list of tensors says a tensor's first size, its kind and its place."""
    tensor = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == name)
    sizes = tensor.field.offset + 8 + len(name) + 4
    kind = sizes + 8 * len(tensor.shape)
    return sizes, kind, kind + 4


def _with_size(size: int) -> Callable[[bytearray, tuple[int, int, int]], None]:
    return lambda data, places: struct.pack_into("<Q", data, places[0], size)


def _with_kind(kind: int) -> Callable[[bytearray, tuple[int, int, int]], None]:
    return lambda data, places: struct.pack_into("<I", data, places[1], kind)


def _with_place(place: int) -> Callable[[bytearray, tuple[int, int, int]], None]:
    return lambda data, places: struct.pack_into("<Q", data, places[2], place)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_with_size(2**40), "ends at byte"),
        (_with_size(255), "not a multiple of Q4_K"),
        (_with_size(512), "inside"),
        (_with_size(0), "of shape"),
        (_with_kind(9999), "9999"),
        (_with_kind(int(Stored.Q5_K)), "inside"),
        (_with_kind(int(Stored.IQ4_XS)), None),  # smaller blocks: nothing tells
        (_with_kind(int(Stored.Q8_0)), "inside"),
        (_with_place(2**63), "ends at byte"),
        (_with_place(2**64 - 32), "no place for a tensor"),
        (_with_place(0), "inside token_embd.weight"),
        (_with_place(8), "no place for a tensor"),
    ],
)
def test_damage_in_the_list_of_tensors_is_refused(
    change: Callable[[bytearray, tuple[int, int, int]], None], said: str | None, tmp_path: Path
) -> None:
    path = file_of("qwen3moe", blocks=True).write(tmp_path / "damaged.gguf")
    data = bytearray(path.read_bytes())
    change(data, _info(path, "blk.1.attn_q.weight"))
    path.write_bytes(data)
    if said is None:
        read_content(path)
    else:
        assert said in refused_without_much_memory(path)


@pytest.mark.parametrize("kind", [Stored.Q8_K, Stored.Q8_1, Stored.I8, Stored.Q1_0])
def test_kinds_that_cannot_be_read_are_refused_by_name(kind: Stored, tmp_path: Path) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    file = file_of("gemma3", blocks=True)
    data = np.zeros((64, 256 // block * size), np.int8 if kind is Stored.I8 else np.uint8)
    file.tensors["token_embd.weight"] = data, kind
    assert f"token_embd.weight is stored as {kind.name}" in refusal(file.write(tmp_path / "other.gguf"))


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 40))])
@pytest.mark.parametrize("blocks", [False, True], ids=["float32", "K-quants"])
@pytest.mark.parametrize("name", NAMES)
def test_flipped_bytes_in_the_header_are_read_or_refused(name: str, blocks: bool, seed: int, tmp_path: Path) -> None:
    """Ten damaged files per seed. Whatever else than InputError is raised fails the test."""
    path = file_of(name, blocks=blocks).write(tmp_path / "flipped.gguf")
    data, chance = path.read_bytes(), random.Random(seed)
    end = gguf.GGUFReader(path).data_offset
    for _ in range(10):
        damaged = bytearray(data)
        for place in chance.choices(range(end), k=chance.choice([1, 1, 2, 8])):
            damaged[place] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            load(path)
        except InputError as error:
            assert_frugal(error)


def test_reading_converts_no_weights_and_loading_one_after_the_other(tmp_path: Path) -> None:
    file = file_of("qwen3moe", blocks=True)
    path = file.write(tmp_path / "small.gguf")
    whole = sum(array.nbytes for array, _ in file.in_float32().tensors.values())
    assert whole > 12_000_000
    tracemalloc.start()  # sees numpy's memory, not torch's
    read_content(path)
    reading = tracemalloc.get_traced_memory()[1]
    read_gguf(path, lambda _: torch.bfloat16)
    loading = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reading < whole / 10
    assert loading < whole / 4


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "gemma2"])
def test_weights_in_bfloat16_are_the_float32_ones_rounded_and_of_the_same_fingerprint(
    name: str, tmp_path: Path
) -> None:
    path = file_of(name, blocks=True).write(tmp_path / "small.gguf")
    exact, half = read_gguf(path), read_gguf(path, lambda _: torch.bfloat16)
    assert all(torch.equal(half.weights[key], weight.bfloat16()) for key, weight in exact.weights.items())
    assert half.fingerprint == exact.fingerprint == fingerprint(exact.weights)
    assert (half.dtype, exact.dtype) == (torch.float32, torch.float32)


@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3"])
def test_blocks_are_the_weights_rows(name: str, tmp_path: Path) -> None:
    """What the native backend takes as it is."""
    path = file_of(name, blocks=True).write(tmp_path / "small.gguf")
    found = read_content(path)
    blocks = read_blocks(path, found.config)
    assert len(blocks) > 8
    for weight, (kind, rows) in blocks.items():
        values = gguf.dequantize(rows.copy(), Stored[kind])
        np.testing.assert_array_equal(values, found.weights[weight])
