"""GGUF files of tiny models, written for tests, and what their logits are compared with."""

import dataclasses
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Stored
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedModel

from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.backends.torch.forward import TorchForward
from stridelm.export.gguf_file import add_field
from stridelm.layout import lay_out, make_block
from stridelm.settings import LoadSettings
from tiny import EOS, FAMILIES

PROMPT = [72, 101, 108, 108, 111, 32, 119, 111, 114, 108, 100, 256, 7, 7, 7, 250, 0, 33, 259, 12]
CHAT = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}

WHOLE_BLOCKS: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
"""Sizes that blocks of 32 weights divide."""
WHOLE_SUPER_BLOCKS: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
"""Sizes that blocks of 256 weights divide."""
_BLOCK_SIZES = {
    Stored.Q5_0: ((0, 1.0),),
    Stored.Q5_1: ((0, 0.8), (2, -12.0)),
    Stored.IQ4_NL: ((0, 0.15),),
    Stored.Q2_K: ((80, 0.7), (82, 0.7)),
    Stored.Q3_K: ((108, 0.14),),
    Stored.Q4_K: ((0, 0.035), (2, 0.25)),
    Stored.Q5_K: ((0, 0.018), (2, 0.25)),
    Stored.Q6_K: ((208, 0.007),),
    Stored.IQ2_XXS: ((0, 0.1),),
}
"""Where a block has numbers in half precision, and how large they are for weights of about 10. All else is random."""
RANDOM_KINDS = frozenset(_BLOCK_SIZES)


@dataclass
class Content:
    """What a GGUF file will hold; tests change it before it is written."""

    architecture: str
    settings: dict[str, Any]
    tensors: dict[str, np.ndarray]
    stored: dict[str, Stored] = field(default_factory=dict)
    """The tensors that are not kept as they are; of `RANDOM_KINDS` they are any blocks."""

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        for name, value in self.settings.items():
            add_field(writer, name, value)
        for name, array in self.tensors.items():
            kind = self.stored.get(name)
            if kind is not None and kind in RANDOM_KINDS:
                seed = zlib.crc32(name.encode())
                blocks = random_blocks(kind, *array.shape, size=float(array.std()), seed=seed)
                writer.add_tensor(name, blocks, raw_dtype=kind)
            elif kind is not None:
                writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
            else:
                writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def random_blocks(kind: Stored, outputs: int, inputs: int, *, size: float = 1.0, seed: int = 0) -> np.ndarray:
    """Rows of bytes. `size`: about the standard deviation of the weights."""
    draw = np.random.default_rng([seed, outputs, inputs, kind])
    per_block, length = gguf.GGML_QUANT_SIZES[kind]
    bytes_OBX = draw.integers(0, 256, size=(outputs, inputs // per_block, length), dtype=np.uint8)
    for at, about in _BLOCK_SIZES[kind]:
        # Halves of very different sizes, whole blocks of zeros among them.
        halves = about / 10 * size * draw.uniform(0.25, 1.75, size=(outputs, inputs // per_block, 1))
        halves[draw.random(halves.shape) < 0.03] = 0
        bytes_OBX[..., at : at + 2] = halves.astype(np.float16).view(np.uint8)
    return bytes_OBX.reshape(outputs, -1)


def tiny_network(family: str, **changes: Any) -> PreTrainedModel:
    """A tiny random model; norms and biases are random, too, so that a swap of two shows."""
    settings = {"rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0}, "rms_norm_eps": 1e-3}
    config = type(FAMILIES[family])(**FAMILIES[family].to_dict() | settings | changes)
    torch.manual_seed(3)
    network = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval().requires_grad_(False)
    for parameter in network.parameters():
        if parameter.ndim == 1:
            parameter.uniform_(0.5, 1.5)
    return network


def content_of(network: PreTrainedModel) -> Content:
    config = network.config.get_text_config()
    state = dict(network.state_dict())
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    settings: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }
    return Content(
        config.model_type,
        {f"{config.model_type}.{name}": value for name, value in settings.items()} | tokenizer_settings(),
        {gguf_name(name): for_llama_cpp(name, weight, network) for name, weight in state.items()},
    )


def stored_as(kind: Stored, family: str = "llama", *, other: dict[str, Stored] | None = None) -> Content:
    """A model whose matrices are all quantised; `other` names those of another kind."""
    kinds = {kind, *(other or {}).values()}
    has_super_blocks = any(gguf.GGML_QUANT_SIZES[each][0] == 256 for each in kinds)
    content = content_of(tiny_network(family, **(WHOLE_SUPER_BLOCKS if has_super_blocks else WHOLE_BLOCKS)))
    content.stored = {name: kind for name, array in content.tensors.items() if array.ndim == 2} | (other or {})
    return content


def tokenizer_settings() -> dict[str, Any]:
    """tiny.byte_tokenizer's vocabulary with two merges, filled up to the size of the embedding."""
    settings = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*sorted(pre_tokenizers.ByteLevel.alphabet()), EOS, "ab", "abc", "<spare>"],
        "token_type": [1] * 256 + [3, 1, 1, 3],
        "merges": ["a b", "ab c"],
        "eos_token_id": 256,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in settings.items()} | {"tokenizer.chat_template": CHAT}


def gguf_name(name: str) -> str:
    module, part = name.removeprefix("model.layers.").rsplit(".", 1)
    if not name.startswith("model.layers."):
        return f"{NAMES[module]}.{part}"
    layer, module = module.split(".", 1)
    return f"blk.{layer}.{NAMES[module]}.{part}"


def for_llama_cpp(name: str, weight: torch.Tensor, network: PreTrainedModel) -> np.ndarray:
    """llama.cpp turns neighbouring rows of a head, transformers rows half a head apart; only Llama files mind."""
    config = network.config.get_text_config()
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if config.model_type == "llama" and heads:
        order = np.arange(weight.shape[0]).reshape(heads, 2, -1).transpose(0, 2, 1).ravel()
        return weight.numpy()[order]
    return weight.numpy()


def load(path: Path) -> Checkpoint:
    return load_checkpoint(str(path), LoadSettings(device="cpu"))


def logits_of(checkpoint: Checkpoint, ids: list[int]) -> torch.Tensor:
    forward = TorchForward(checkpoint.network, 64)
    block = dataclasses.replace(make_block(0, ids), wanted=tuple(range(len(ids))))
    return forward(lay_out([block]), [forward.cache.open()])[0].logits_WV


def assert_same_logits(checkpoint: Checkpoint, network: PreTrainedModel) -> None:
    with torch.inference_mode():
        expected = network(input_ids=torch.tensor([PROMPT]), use_cache=False).logits[0]
    assert expected.std() > 0.3  # so that 1e-4 says something
    torch.testing.assert_close(logits_of(checkpoint, PROMPT), expected, rtol=1e-4, atol=1e-4)


MODELS = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"num_key_value_heads": 4}),
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen3", {}),
    ("qwen3", {"tie_word_embeddings": False, "head_dim": 16}),
]


def cuts(content: Content, path: Path) -> dict[str, int]:
    """Where a file may end too early."""
    whole = content.write(path).stat().st_size
    reader = gguf.GGUFReader(path)
    tokens, first_tensor = reader.fields["tokenizer.ggml.tokens"].offset, reader.tensors[0]
    return {
        "nothing": 0,
        "10 bytes": 10,
        "middle of the settings": reader.fields["llama.embedding_length"].offset + 20,
        "middle of the tokens": tokens + 1000,
        "middle of the list of tensors": first_tensor.field.offset + 30,
        "before the tensors": reader.data_offset,
        "middle of the first tensor": first_tensor.data_offset + first_tensor.n_bytes // 2,
        "middle of the tensors": (reader.data_offset + whole) // 2,
        "last 100 bytes missing": whole - 100,
    }


def header_places(path: Path) -> list[int]:
    """The bytes before the tensors; of the long lists of tokens and their kinds only the beginning."""
    reader = gguf.GGUFReader(path)
    starts = sorted(field.offset for name, field in reader.fields.items() if not name.startswith("GGUF."))
    starts += [tensor.field.offset for tensor in reader.tensors] + [reader.data_offset]
    lengths = np.diff(starts, append=starts[-1])
    begins = [start + at for start, length in zip(starts, lengths, strict=True) for at in range(min(length, 120))]
    return [*range(24), *begins]
