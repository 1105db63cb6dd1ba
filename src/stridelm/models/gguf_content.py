"""What a GGUF file holds: settings, weights (dequantised to float32) and tokenizer, under transformers' names. Imports
neither transformers nor torch; `models/gguf.py` makes their objects of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from stridelm.models.gguf_tokenizer import tokenizer_from_gguf
from stridelm.models.tokenizer import Tokenizer
from stridelm.models.weight_arrays import Chosen, LazyWeight, LazyWeights
from stridelm.params import InputError

FAMILIES = ("llama", "qwen2", "qwen3")
TENSORS = {
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
"""llama.cpp's name of a tensor -> transformers' name."""

_SCALING = ("rope.scaling.type", "rope.scaling.factor", "rope.scale_linear")
_LONGEST_ARRAY = 2**22
"""Maximum number of items. The longest arrays are the vocabulary and its merges: some hundred thousand."""
# The reader follows offsets and sizes found in the file: damage shows as any of these.
_DAMAGE = (ValueError, LookupError, TypeError, ArithmeticError, MemoryError, OSError, RuntimeError)
_AT_LEAST_ONE = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "max_position_embeddings",
)  # fmt: skip


class GgufConfig(SimpleNamespace):
    """The settings, by the names of a transformers config."""

    def get_text_config(self) -> "GgufConfig":
        return self


@dataclass(frozen=True, slots=True)
class GgufContent:
    """The content of a GGUF file; `StoredModel` without torch and transformers."""

    config: GgufConfig
    weights: LazyWeights
    """Dequantised when they are read."""
    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    """The tokens that end an answer: end of text, of turn, of message."""


def read_content(path: Path) -> GgufContent:
    """Read a file; its weights are dequantised later, when they are used. Raises InputError if it is damaged or of a
    kind that is not supported."""
    try:
        reader = _Reader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        config = _config(path, fields, [tensor.name for tensor in reader.tensors])
        weights = LazyWeights(dict(_weight(path, config, tensor) for tensor in reader.tensors))
        _check_weights(path, config, weights.shapes)
        tokenizer = tokenizer_from_gguf(path, fields)
    except InputError:
        raise
    except _DAMAGE as error:
        raise damaged(path, error) from error
    ends = {fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")}
    return GgufContent(config, weights, tokenizer, frozenset(end for end in ends if end is not None))


def damaged(path: Path, error: Exception) -> InputError:
    reason = " ".join(str(error).split())
    return InputError(
        f"{path}: cannot be read as a GGUF file ({type(error).__name__}: {reason}). It may be cut off or damaged: "
        "fetch it again"
    )


class _Reader(gguf.GGUFReader):
    """Raises an error at the end of the file. gguf's own reader takes missing data as empty, and an array with a
    damaged length as billions of items."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == gguf.GGUFValueType.ARRAY:
            length = int(self._get(orig_offs + 4, np.uint64)[0])
            if length > _LONGEST_ARRAY:
                raise ValueError(f"a list of {length} items at byte {orig_offs}")
        return super()._get_field_parts(orig_offs, raw_type)

    def _get(self, offset: int, dtype: npt.DTypeLike, count: int = 1, override_order: Any = None) -> npt.NDArray[Any]:
        found = super()._get(offset, dtype, count, override_order)
        if len(found) < count:
            raise ValueError(f"it ends at byte {len(self.data)}, before all of it was read")
        return found


def _config(path: Path, fields: dict[str, Any], tensors: list[str]) -> GgufConfig:
    architecture = fields["general.architecture"]
    if architecture not in FAMILIES:
        raise InputError(
            f"{path}: architecture {architecture!r} is not supported from GGUF ({', '.join(FAMILIES)} are): use the "
            "model's Hugging Face folder instead"
        )

    def setting(name: str, default: Any = None) -> Any:
        value = fields.get(f"{architecture}.{name}", default)
        if value is None:
            raise InputError(f"{path}: the setting {architecture}.{name} is missing: fetch the file again")
        return value

    # A factor without a type means linear scaling to llama.cpp; a factor of 1 changes nothing.
    for name in (*_SCALING, "attention.sliding_window", "expert_count"):
        if fields.get(f"{architecture}.{name}") not in (None, "none", 0, 1 if name in _SCALING else 0):
            raise InputError(
                f"{path}: {architecture}.{name} is not supported from GGUF: use the model's Hugging Face folder instead"
            )
    # Checked here, because configs make lists with an item per layer: a damaged number would fill the memory.
    layers, there = setting("block_count"), len({name.split(".")[1] for name in tensors if name.startswith("blk.")})
    if layers != there:
        raise InputError(
            f"{path}: {architecture}.block_count says {layers} layers, but there are weights of {there}: fetch the "
            "file again"
        )
    heads = setting("attention.head_count")
    hidden = setting("embedding_length")
    head_size = setting("attention.key_length", hidden // heads)
    if {setting("attention.value_length", head_size), setting("rope.dimension_count", head_size)} != {head_size}:
        raise InputError(
            f"{path}: value heads or rotary dimensions of another size than {head_size} are not supported from GGUF: "
            "use the model's Hugging Face folder instead"
        )
    tokens = len(fields["tokenizer.ggml.tokens"])

    def token_id(name: str) -> int | None:
        token = fields.get(f"tokenizer.ggml.{name}_token_id")
        if token is not None and not 0 <= token < tokens:
            raise InputError(
                f"{path}: tokenizer.ggml.{name}_token_id is {token}, but there are {tokens} tokens: fetch the file "
                "again"
            )
        return token

    eos, padding = token_id("eos"), token_id("padding")
    config = GgufConfig(
        model_type=architecture,
        vocab_size=tokens,
        hidden_size=hidden,
        intermediate_size=setting("feed_forward_length"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=setting("attention.head_count_kv", heads),
        head_dim=head_size,
        hidden_act="silu",
        max_position_embeddings=setting("context_length"),
        rms_norm_eps=setting("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": setting("rope.freq_base", 10000.0)},
        tie_word_embeddings="output.weight" not in tensors,
        bos_token_id=token_id("bos"),
        eos_token_id=eos,
        pad_token_id=eos if padding is None else padding,
    )
    _check_settings(path, config)
    return config


def _check_settings(path: Path, config: GgufConfig) -> None:
    """Refuse what a damaged file may say."""
    for name in _AT_LEAST_ONE:
        value = getattr(config, name)
        if type(value) is not int or value < 1:
            raise InputError(f"{path}: says {value!r} for {name}, which must be a whole number: fetch the file again")
    for name, value in (("rms_norm_eps", config.rms_norm_eps), ("rope_theta", config.rope_parameters["rope_theta"])):
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise InputError(f"{path}: says {value!r} for {name}, which must be above 0: fetch the file again")
    if config.num_attention_heads % config.num_key_value_heads:
        raise InputError(
            f"{path}: says {config.num_attention_heads} heads for {config.num_key_value_heads} heads of keys, which do "
            "not divide them: fetch the file again"
        )


def _name_and_heads(path: Path, config: GgufConfig, tensor: str) -> tuple[str, int | None]:
    """transformers' name of a tensor, and, if its rows have to be reordered, their number of heads."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", tensor)
    if not match or match[2] not in TENSORS:
        raise InputError(
            f"{path}: the tensor {tensor!r} is not known for {config.model_type}: use the model's Hugging Face folder "
            "instead"
        )
    layer, kind, part = match.groups()
    heads = None
    if config.model_type == "llama" and kind in ("attn_q", "attn_k"):
        heads = config.num_attention_heads if kind == "attn_q" else config.num_key_value_heads
    prefix = f"model.layers.{layer}." if layer is not None else ""
    return f"{prefix}{TENSORS[kind]}.{part}", heads


def _weight(path: Path, config: GgufConfig, tensor: gguf.ReaderTensor) -> tuple[str, LazyWeight]:
    """transformers' name of a tensor, and what dequantises its rows."""
    name, heads = _name_and_heads(path, config, tensor.name)
    shape = tuple(map(int, reversed(tensor.shape)))
    if heads is not None and shape[0] % (2 * heads):
        raise ValueError(f"{tensor.name} has {shape[0]} rows for {heads} heads")
    try:
        gguf.dequantize(tensor.data[:1], tensor.tensor_type)  # whether that is known
    except NotImplementedError as error:
        raise InputError(
            f"{path}: {tensor.name} is stored as {tensor.tensor_type.name}, which is not supported: use a file with "
            "another quantisation, or the model's Hugging Face folder"
        ) from error

    order = np.arange(shape[0]) if heads is None else _split_halves(np.arange(shape[0]), heads)

    def dequantise(chosen: Chosen) -> np.ndarray:
        # `order[chosen]` makes a copy: the reader's array is a view of the memory-mapped file.
        return gguf.dequantize(tensor.data[order[chosen]], tensor.tensor_type).astype(np.float32, copy=False)

    return name, LazyWeight(shape, dequantise)


def read_blocks(path: Path, config: GgufConfig) -> dict[str, tuple[str, np.ndarray]]:
    """The weights as they are stored, by transformers' names: the kind of their blocks, and rows of bytes. For a file
    that `read_content` accepts. They are views of the file, except those whose rows are reordered."""
    blocks: dict[str, tuple[str, np.ndarray]] = {}
    for tensor in _Reader(path).tensors:
        if len(tensor.shape) == 2:
            rows = tensor.data.reshape(int(tensor.shape[1]), -1).view(np.uint8)
            name, heads = _name_and_heads(path, config, tensor.name)
            blocks[name] = tensor.tensor_type.name, rows if heads is None else _split_halves(rows, heads)
    return blocks


def _split_halves(array: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp rotates neighbouring pairs of a head, transformers its two halves: reorder the rows accordingly."""
    return array.reshape(heads, -1, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def _check_weights(path: Path, config: GgufConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Exactly the model's weights are there, in the right shapes."""
    expected = _shapes(config)
    missing = sorted(expected.keys() - shapes.keys())
    if missing:
        raise InputError(f"{path}: the weight {missing[0]} is missing ({len(missing)} in all): fetch the file again")
    for name, shape in shapes.items():
        if name not in expected:
            raise InputError(
                f"{path}: the weight {name} is more than {config.model_type} models have: use the model's Hugging Face "
                "folder instead"
            )
        if shape != expected[name]:
            raise InputError(
                f"{path}: the weight {name} is of shape {shape}, but the settings say {expected[name]}: fetch "
                "the file again"
            )


def _shapes(config: GgufConfig) -> dict[str, tuple[int, ...]]:
    """The weights of a model of these families."""
    width, inner, size = config.hidden_size, config.intermediate_size, config.head_dim
    outputs = {"q": config.num_attention_heads * size}
    outputs["k"] = outputs["v"] = config.num_key_value_heads * size
    layer: dict[str, tuple[int, ...]] = {
        **{f"self_attn.{name}_proj.weight": (count, width) for name, count in outputs.items()},
        "self_attn.o_proj.weight": (width, outputs["q"]),
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
    }
    if config.model_type == "qwen2":
        layer |= {f"self_attn.{name}_proj.bias": (count,) for name, count in outputs.items()}
    if config.model_type == "qwen3":
        layer |= {f"self_attn.{name}_norm.weight": (size,) for name in "qk"}
    shapes: dict[str, tuple[int, ...]] = {
        f"model.layers.{number}.{name}": shape
        for number in range(config.num_hidden_layers)
        for name, shape in layer.items()
    }
    edges = ["model.embed_tokens"] if config.tie_word_embeddings else ["model.embed_tokens", "lm_head"]
    shapes |= {f"{name}.weight": (config.vocab_size, width) for name in edges}
    return shapes | {"model.norm.weight": (width,)}
