"""A model of the Llama, Qwen2 or Qwen3 family as a GGUF file, for llama.cpp and what is built on it.

Lossless by default: each matrix is stored in the smallest of Q8_0, F16, BF16 and F32 that represents its numbers
exactly. `stridelm.models.gguf` can read such a file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Stored
from transformers import PreTrainedTokenizerBase

from stridelm.export.gguf_vocabulary import vocabulary_fields
from stridelm.export.hf_folder import made_whole
from stridelm.models.gguf_format.architecture import NAMES
from stridelm.params import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Storage = Literal["exact", "q8_0"]
"""`q8_0` rounds matrices to 8 bits: for draft models, which never change a text, and which then run faster."""
FAMILIES = ("llama", "qwen2", "qwen3")
_NAMES = {theirs: ours for ours, theirs in NAMES.items()}
_BLOCK = 32
"""Number of values per block of Q8_0."""
Tensor = tuple[str, np.ndarray]


def write_gguf(
    file: Path,
    network: "PreTrainedModel",
    tokenizer: PreTrainedTokenizerBase,
    eos_ids: frozenset[int],
    *,
    name: str,
    storage: Storage = "exact",
) -> None:
    """Write a whole model; after an error no file is left. `network` has transformers' own layers (loaded as
    trainable); `name` is the model's name in the file."""
    if file.exists():
        raise InputError(f"{file}: exists already: name another file")
    config: Any = network.config.get_text_config()
    _check_family(config)
    fields = _settings(config) | vocabulary_fields(tokenizer, int(config.vocab_size), eos_ids)
    kinds = {tensor: _kind(array, storage) for tensor, array in _tensors(network)}
    with made_whole(file) as working:
        _write(working, network, {"general.name": name} | fields, kinds)


def _write(path: Path, network: "PreTrainedModel", fields: dict[str, Any], kinds: dict[str, Stored]) -> None:
    """Write tensor by tensor, without a second copy of the model in memory."""
    writer = gguf.GGUFWriter(path, network.config.get_text_config().model_type)
    try:
        for name, value in fields.items():
            add_field(writer, name, value)
        for name, array in _tensors(network):
            kind = kinds[name]
            block, size = gguf.GGML_QUANT_SIZES[kind]
            writer.add_tensor_info(name, array.shape, array.dtype, array.size // block * size, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, array in _tensors(network):
            writer.write_tensor_data(gguf.quantize(array, kinds[name]))
    finally:
        writer.close()


def add_field(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    """Add a field with the GGUF type for such a value."""
    match value:
        case bool():
            writer.add_bool(name, value)
        case int():
            writer.add_uint32(name, value)
        case float():
            writer.add_float32(name, value)
        case str():
            writer.add_string(name, value)
        case _:
            writer.add_array(name, value)


def _check_family(config: Any) -> None:
    family = config.model_type
    if family not in FAMILIES:
        raise InputError(
            f"{family} models cannot be written as GGUF ({', '.join(FAMILIES)} can): write a Hugging Face folder and "
            "convert it with llama.cpp's own convert_hf_to_gguf.py"
        )
    rope = config.rope_parameters["rope_type"]
    other = {
        f"rotary positions of type {rope!r}": rope not in ("default", "llama3"),
        "rotary positions for a part of each head": config.rope_parameters.get("partial_rotary_factor", 1) != 1,
        "sliding windows": any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()),
        f"the activation {config.hidden_act!r}": config.hidden_act != "silu",
    }
    found = next((what for what, is_there in other.items() if is_there), None)
    if found:
        raise InputError(
            f"{found} cannot be written as GGUF here: write a Hugging Face folder and convert it with llama.cpp's own "
            "convert_hf_to_gguf.py"
        )


def _head_size(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _settings(config: Any) -> dict[str, Any]:
    settings = {
        "block_count": int(config.num_hidden_layers),
        "context_length": int(config.max_position_embeddings),
        "embedding_length": int(config.hidden_size),
        "feed_forward_length": int(config.intermediate_size),
        "vocab_size": int(config.vocab_size),
        "attention.head_count": int(config.num_attention_heads),
        "attention.head_count_kv": int(config.num_key_value_heads),
        "attention.key_length": _head_size(config),
        "attention.value_length": _head_size(config),
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.dimension_count": _head_size(config),
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
    }
    return {f"{config.model_type}.{name}": value for name, value in settings.items()}


def _tensors(network: "PreTrainedModel") -> Iterator[Tensor]:
    """All tensors with llama.cpp's names, in float32, one at a time."""
    config: Any = network.config.get_text_config()
    factors = _rope_factors(network)
    if factors is not None:
        yield "rope_freqs.weight", factors
    for name, tensor in network.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.detach().float().cpu().numpy()
        module, part = name.removeprefix("model.layers.").rsplit(".", 1)
        if not name.startswith("model.layers."):
            yield f"{_NAMES[module]}.{part}", array
            continue
        layer, module = module.split(".", 1)
        yield f"blk.{layer}.{_NAMES[module]}.{part}", _for_llama_cpp(config, module, array)


def _for_llama_cpp(config: Any, module: str, array: np.ndarray) -> np.ndarray:
    """Reorders the rows of a matrix for rotary positions: transformers rotates the two halves of a head against each
    other, llama.cpp's Llama neighbouring pairs."""
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}.get(module)
    if config.model_type != "llama" or heads is None:
        return array
    pairs = array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2)
    return np.ascontiguousarray(pairs.reshape(array.shape))


def _rope_factors(network: "PreTrainedModel") -> np.ndarray | None:
    """The divisor of each rotary frequency if positions are scaled as in Llama 3; None if they are not."""
    config: Any = network.config.get_text_config()
    if config.rope_parameters["rope_type"] == "default":
        return None
    size = _head_size(config)
    plain = config.rope_parameters["rope_theta"] ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
    rotary: Any = network.get_submodule("model.rotary_emb")
    return (plain / rotary.inv_freq.double().cpu()).float().numpy()


def _kind(array: np.ndarray, storage: Storage) -> Stored:
    """The type to store a tensor as. llama.cpp requires float32 for norms and biases."""
    if array.ndim < 2:
        return Stored.F32
    fits = array.shape[-1] % _BLOCK == 0
    if storage == "q8_0":
        return Stored.Q8_0 if fits else Stored.F32
    for kind in (Stored.Q8_0, Stored.F16, Stored.BF16):
        if kind is Stored.Q8_0 and not fits:
            continue
        # F16 has a smaller range: values beyond it become infinite, and so are not equal.
        with np.errstate(over="ignore"):
            if np.array_equal(gguf.dequantize(gguf.quantize(array, kind), kind), array):
                return kind
    return Stored.F32
