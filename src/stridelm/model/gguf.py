"""GGUF files as transformers models: settings, weights (dequantised to float32) and tokenizer."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, PreTrainedConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

from stridelm.model.gguf_tokenizer import tokenizer_from_gguf
from stridelm.types import InputError

_CONFIGS: dict[str, type[PreTrainedConfig]] = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


@dataclass(frozen=True, slots=True)
class GGUF:
    """What a GGUF file holds, in transformers' terms."""

    config: PreTrainedConfig
    weights: dict[str, torch.Tensor]
    tokenizer: PreTrainedTokenizerFast


def read_gguf(path: Path) -> GGUF:
    """Read a file whole. Raises InputError for one that is damaged or of a kind that is not supported."""
    try:
        reader = gguf.GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        config = _config(path, fields, has_output=any(tensor.name == "output.weight" for tensor in reader.tensors))
        weights = dict(_weight(path, config, tensor) for tensor in reader.tensors)
        tokenizer = tokenizer_from_gguf(path, fields)
    except InputError:
        raise
    # The reader walks the file by offsets found in it: damage shows as any of these.
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: cannot be read as a GGUF file ({type(error).__name__}: {error}). It may be cut off or damaged: "
            "fetch it again"
        ) from error
    missing = sorted(_expected_weights(config) - weights.keys())
    if missing:
        raise InputError(f"{path}: the weight {missing[0]} is missing ({len(missing)} in all): fetch the file again")
    return GGUF(config, weights, tokenizer)


def _config(path: Path, fields: dict[str, Any], *, has_output: bool) -> PreTrainedConfig:
    architecture = fields["general.architecture"]
    if architecture not in _CONFIGS:
        raise InputError(
            f"{path}: architecture {architecture!r} is not supported from GGUF ({', '.join(_CONFIGS)} are): use the "
            "model's Hugging Face folder instead"
        )

    def setting(name: str, default: Any = None) -> Any:
        value = fields.get(f"{architecture}.{name}", default)
        if value is None:
            raise InputError(f"{path}: the setting {architecture}.{name} is missing: fetch the file again")
        return value

    for name in ("rope.scaling.type", "attention.sliding_window", "expert_count"):
        if fields.get(f"{architecture}.{name}") not in (None, "none", 0):
            raise InputError(
                f"{path}: {architecture}.{name} is not supported from GGUF: use the model's Hugging Face folder instead"
            )
    heads = setting("attention.head_count")
    hidden = setting("embedding_length")
    head_size = setting("attention.key_length", hidden // heads)
    if setting("attention.value_length", head_size) != head_size or setting("rope.dimension_count", head_size) != head_size:
        raise InputError(f"{path}: value heads or rotary dimensions of another size than {head_size} are not supported")
    eos = fields.get("tokenizer.ggml.eos_token_id")
    return _CONFIGS[architecture](
        architectures=[_CONFIGS[architecture].__name__.replace("Config", "ForCausalLM")],
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=hidden,
        intermediate_size=setting("feed_forward_length"),
        num_hidden_layers=setting("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=setting("attention.head_count_kv", heads),
        head_dim=head_size,
        max_position_embeddings=setting("context_length"),
        rms_norm_eps=setting("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": setting("rope.freq_base", 10000.0)},
        tie_word_embeddings=not has_output,
        bos_token_id=fields.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=eos,
        pad_token_id=fields.get("tokenizer.ggml.padding_token_id", eos),
        dtype="float32",
    )


def _weight(path: Path, config: PreTrainedConfig, tensor: gguf.ReaderTensor) -> tuple[str, torch.Tensor]:
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", tensor.name)
    if not match or match[2] not in _TENSORS:
        raise InputError(
            f"{path}: the tensor {tensor.name!r} is not known for {config.model_type}: use the model's Hugging Face folder"
        )
    layer, kind, part = match.groups()
    try:
        array = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    except NotImplementedError as error:
        raise InputError(f"{path}: {tensor.name} is stored as {tensor.tensor_type.name}, which is not supported") from error
    if config.model_type == "llama" and kind in ("attn_q", "attn_k"):
        heads = config.num_attention_heads if kind == "attn_q" else config.num_key_value_heads
        array = _split_halves(array, heads)
    prefix = f"model.layers.{layer}." if layer is not None else ""
    # A copy: the reader's array is a view of the memory-mapped file.
    return f"{prefix}{_TENSORS[kind]}.{part}", torch.from_numpy(array.copy())


def _split_halves(array: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp turns neighbouring pairs of a head, transformers its two halves: reorder the rows accordingly."""
    return array.reshape(heads, -1, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def _expected_weights(config: PreTrainedConfig) -> set[str]:
    kinds = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj"]
    kinds += ["mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"]
    layers = {f"model.layers.{layer}.{kind}.weight" for layer in range(config.num_hidden_layers) for kind in kinds}
    return layers | {"model.embed_tokens.weight", "model.norm.weight"}
