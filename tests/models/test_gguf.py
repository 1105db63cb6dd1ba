"""GGUF files, written here from tiny models: the same logits as transformers', and a plain refusal of all else."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Stored

from gguf_models import (
    CHAT,
    MODELS,
    Content,
    assert_same_logits,
    content_of,
    cuts,
    header_places,
    load,
    tiny_network,
)
from gguf_refused import assert_frugal, refusal, refused_without_much_memory
from stridelm.params import InputError
from tiny import CONTEXT


@pytest.mark.parametrize(("family", "changes"), MODELS)
def test_float_file_gives_the_logits_of_transformers(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    network = tiny_network(family, **changes)
    content = content_of(network)
    assert ("output.weight" in content.tensors) != network.config.get_text_config().tie_word_embeddings
    checkpoint = load(content.write(tmp_path / "tiny.gguf"))
    assert_same_logits(checkpoint, network)
    assert (checkpoint.eos_ids, checkpoint.context_length, checkpoint.vocabulary) == ({256}, CONTEXT, 260)
    assert checkpoint.tokenizer.encode("abcab!") == [258, 257, 0]
    assert checkpoint.tokenizer.chat_template == CHAT


@pytest.mark.parametrize("kind", [Stored.Q8_0, Stored.Q4_1, Stored.F16, Stored.BF16])
def test_quantised_file_gives_the_logits_of_its_dequantised_weights(kind: Stored, tmp_path: Path) -> None:
    network = tiny_network("llama", intermediate_size=64)
    content = content_of(network)
    content.stored = {name: kind for name, array in content.tensors.items() if array.ndim == 2}
    checkpoint = load(content.write(tmp_path / "tiny.gguf"))
    for parameter in network.parameters():
        if parameter.ndim == 2:  # by rows: Llama's other order of the rows does not matter to it
            parameter.copy_(torch.from_numpy(gguf.dequantize(gguf.quantize(parameter.numpy(), kind), kind)))
    assert_same_logits(checkpoint, network)


def test_settings_that_may_be_absent_have_llama_cpps_defaults(tmp_path: Path) -> None:
    changes = {"num_key_value_heads": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
    network = tiny_network("llama", **changes)
    content = content_of(network)
    for name in ("head_count_kv", "key_length", "value_length"):
        del content.settings[f"llama.attention.{name}"]
    for name in ("dimension_count", "freq_base"):
        del content.settings[f"llama.rope.{name}"]
    assert_same_logits(load(content.write(tmp_path / "tiny.gguf")), network)


@pytest.mark.parametrize(
    ("name", "value"),
    [("expert_count", 0), ("rope.scaling.type", "none"), ("rope.scaling.factor", 1.0), ("attention.causal", True)],
)
def test_settings_that_change_nothing_are_taken(name: str, value: object, tmp_path: Path) -> None:
    network = tiny_network("llama")
    content = content_of(network)
    content.settings[f"llama.{name}"] = value
    assert_same_logits(load(content.write(tmp_path / "tiny.gguf")), network)


@pytest.fixture
def content() -> Content:
    return content_of(tiny_network("llama"))


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.gguf: no such file"):
        load(tmp_path / "none.gguf")


CUTS = [
    "nothing",
    "10 bytes",
    "middle of the settings",
    "middle of the tokens",
    "middle of the list of tensors",
    "before the tensors",
    "middle of the first tensor",
    "middle of the tensors",
    "last 100 bytes missing",
]


@pytest.mark.parametrize("where", CUTS)
def test_cut_off_file_is_refused(where: str, content: Content, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    end = cuts(content, path)[where]
    path.write_bytes(path.read_bytes()[:end])
    assert "It may be cut off or damaged: fetch it again" in refusal(path)


@pytest.mark.parametrize("size", [1, 4, 24, 5000])
def test_garbage_is_refused(size: int, tmp_path: Path) -> None:
    path = tmp_path / "garbage.gguf"
    path.write_bytes(random.Random(0).randbytes(size))
    assert "cannot be read as a GGUF file" in refusal(path)


def test_garbage_behind_a_proper_beginning_is_refused(content: Content, tmp_path: Path) -> None:
    path = content.write(tmp_path / "garbage.gguf")
    path.write_bytes(path.read_bytes()[:24] + random.Random(0).randbytes(5000))
    assert "cannot be read as a GGUF file" in refusal(path)


@pytest.mark.parametrize(("at", "byte", "said"), [(0, b"X", "magic"), (4, b"\x09", "version 9")])
def test_other_formats_and_versions_are_refused(
    at: int, byte: bytes, said: str, content: Content, tmp_path: Path
) -> None:
    path = content.write(tmp_path / "other.gguf")
    data = path.read_bytes()
    path.write_bytes(data[:at] + byte + data[at + 1 :])
    assert said in refusal(path)


@pytest.mark.parametrize("architecture", ["mamba", "gemma4", "qwen2moe"])
def test_unknown_architecture_is_refused(architecture: str, content: Content, tmp_path: Path) -> None:
    content.architecture = architecture
    message = refusal(content.write(tmp_path / "other.gguf"))
    assert repr(architecture) in message
    assert "llama, qwen2, qwen3, qwen3moe, gemma2, gemma3, phi3" in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rope.scaling.type", "yarn"),
        ("rope.scaling.type", "longrope"),
        ("rope.scaling.attn_factor", 1.2),
        ("final_logit_softcapping", 30.0),
        ("attention.sliding_window", 12),
        ("expert_count", 8),
    ],
)
def test_unsupported_setting_is_refused(name: str, value: object, content: Content, tmp_path: Path) -> None:
    content.settings[f"llama.{name}"] = value
    assert f"llama.{name} is not supported" in refusal(content.write(tmp_path / "other.gguf"))


@pytest.mark.parametrize("name", ["attention.value_length", "rope.dimension_count"])
def test_heads_of_several_sizes_are_refused(name: str, content: Content, tmp_path: Path) -> None:
    content.settings[f"llama.{name}"] = 4
    assert "another size than 8" in refusal(content.write(tmp_path / "other.gguf"))


@pytest.mark.parametrize(
    "name",
    [
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
        "tokenizer.ggml.model",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges",
    ],
)
def test_missing_setting_is_refused(name: str, content: Content, tmp_path: Path) -> None:
    del content.settings[name]
    assert name in refusal(content.write(tmp_path / "missing.gguf"))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_missing_tensor_is_refused_whichever_it_is(family: str, tmp_path: Path) -> None:
    content = content_of(tiny_network(family))
    first_layer = [name for name in content.tensors if not name.startswith(("blk.1.", "output.weight"))]
    assert len(first_layer) >= 11
    for name in first_layer:
        rest = {other: array for other, array in content.tensors.items() if other != name}
        message = refusal(dataclasses.replace(content, tensors=rest).write(tmp_path / "missing.gguf"))
        assert "is missing (1 in all)" in message, name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rope_factors.weight", "'rope_factors.weight' is not known for llama"),
        ("blk.0.ssm_a", "'blk.0.ssm_a' is not known for llama"),
        ("blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias is more than llama models have"),
        ("blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight is more than llama models have"),
    ],
)
def test_unknown_tensor_is_refused(name: str, said: str, content: Content, tmp_path: Path) -> None:
    content.tensors[name] = np.ones(32, dtype=np.float32)
    assert said in refusal(content.write(tmp_path / "other.gguf"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("feed_forward_length", 49),
        ("embedding_length", 64),
        ("attention.head_count_kv", 4),
        ("attention.head_count", 2),
    ],
)
def test_tensor_of_another_shape_than_the_settings_say_is_refused(
    name: str, value: int, content: Content, tmp_path: Path
) -> None:
    content.settings[f"llama.{name}"] = value
    assert "of shape" in refusal(content.write(tmp_path / "other.gguf"))


def test_kind_of_storage_that_is_not_known_is_refused(content: Content, tmp_path: Path) -> None:
    content.tensors["output_norm.weight"] = np.ones(32, dtype=np.float64)
    assert "output_norm.weight is stored as F64" in refusal(content.write(tmp_path / "other.gguf"))


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("block_count", 2**31),
        ("block_count", 1),
        ("block_count", 0),
        ("attention.head_count", 0),
        ("attention.head_count", 2**31),
        ("attention.head_count_kv", 0),
        ("embedding_length", 2**32 - 32),
        ("feed_forward_length", 2**32 - 1),
        ("attention.head_count", "four"),
        ("feed_forward_length", 48.5),
        ("context_length", "long"),
    ],
)
def test_damaged_setting_is_refused_at_once(name: str, value: object, content: Content, tmp_path: Path) -> None:
    content.settings[f"llama.{name}"] = value
    refused_without_much_memory(content.write(tmp_path / "damaged.gguf"))


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("length", [2**20, 2**40])
@pytest.mark.parametrize("name", ["tokens", "token_type"])
def test_damaged_length_of_an_array_is_refused_at_once(
    name: str, length: int, content: Content, tmp_path: Path
) -> None:
    path = content.write(tmp_path / "damaged.gguf")
    key = f"tokenizer.ggml.{name}"
    at = gguf.GGUFReader(path).fields[key].offset + 8 + len(key) + 4 + 4  # key, kind, kind of items: then the length
    data = bytearray(path.read_bytes())
    assert int.from_bytes(data[at : at + 8], "little") == 260
    data[at : at + 8] = length.to_bytes(8, "little")
    data += b"\0" * (-len(data[at:]) % 8)  # so that the items, of 4 or 8 bytes, end with the file
    path.write_bytes(data)
    refused_without_much_memory(path)


@pytest.mark.usefixtures("little_memory")
def test_arrays_in_arrays_without_end_are_refused(content: Content, tmp_path: Path) -> None:
    path = content.write(tmp_path / "damaged.gguf")
    one_array = (9).to_bytes(4, "little") + (1).to_bytes(8, "little")  # of arrays, one of them
    head = path.read_bytes()[:16] + (1).to_bytes(8, "little") + (1).to_bytes(8, "little") + b"a"
    path.write_bytes(head + (9).to_bytes(4, "little") + one_array * 20_000)
    refused_without_much_memory(path)


@pytest.mark.parametrize("name", ["bos", "eos", "padding"])
def test_special_token_outside_the_vocabulary_is_refused(name: str, content: Content, tmp_path: Path) -> None:
    content.settings[f"tokenizer.ggml.{name}_token_id"] = 260
    assert f"tokenizer.ggml.{name}_token_id is 260" in refusal(content.write(tmp_path / "damaged.gguf"))


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 100))])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_flipped_bytes_in_the_header_are_read_or_refused(family: str, seed: int, tmp_path: Path) -> None:
    """Ten damaged files per seed. Whatever else than InputError is raised fails the test."""
    path = content_of(tiny_network(family)).write(tmp_path / "flipped.gguf")
    data, chance = path.read_bytes(), random.Random(seed)
    places = header_places(path)
    for _ in range(10):
        damaged = bytearray(data)
        for place in chance.choices(places, k=chance.choice([1, 1, 2, 8])):
            damaged[place] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            load(path)
        except InputError as error:
            assert_frugal(error)
