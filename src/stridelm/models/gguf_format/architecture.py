"""What all architectures of GGUF files have in common, and what one of them adds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stridelm.models.gguf_format.metadata import GgufConfig, Metadata
from stridelm.params import InputError

Shapes = dict[str, tuple[int, ...]]

NAMES = {
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
"""llama.cpp's name of a tensor -> transformers' name, in most architectures."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "rope.scaling.type": ("none", "linear"),
    "rope.scaling.attn_factor": (1,),
    "rope.freq_base_swa": (),
    "attention.sliding_window": (0,),
    "attention.causal": (True,),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "expert_count": (0,),
    "expert_weights_scale": (0, 1),
    "expert_gating_func": (0, 1),
}
"""Settings that change what a model computes, and their values that change nothing."""
_COUNTS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "max_position_embeddings",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Architecture:
    """How files of one architecture become a model of transformers."""

    model_type: str
    """transformers' name of it."""
    layer_shapes: Callable[[GgufConfig], Shapes]
    """The weights of a layer, by transformers' names."""
    adjust: Callable[[Metadata, GgufConfig], None]
    """Adds to the common settings, or changes them."""
    understands: frozenset[str] = frozenset()
    """Settings beyond the common ones that `adjust` takes into account."""
    names: Mapping[str, str] = field(default_factory=lambda: NAMES)
    setting_tensors: frozenset[str] = frozenset()
    """Tensors that belong to the settings and are no weights."""
    expert_tensors: Mapping[str, str] = field(default_factory=dict)
    """Tensors that hold a matrix of each expert -> transformers' name of one."""
    reorders_heads: bool = False
    """llama.cpp rotates neighbouring pairs of a head in it, transformers its two halves."""
    adds_one_to_norms: bool = False
    """The file's norms multiply by their weight; transformers' by one more than it."""


def attention_shapes(config: GgufConfig) -> Shapes:
    width, size = config.hidden_size, config.head_dim
    outputs = {"q": config.num_attention_heads * size}
    outputs["k"] = outputs["v"] = config.num_key_value_heads * size
    return {
        **{f"self_attn.{name}_proj.weight": (count, width) for name, count in outputs.items()},
        "self_attn.o_proj.weight": (width, outputs["q"]),
    }


def gated_shapes(width: int, inner: int) -> Shapes:
    return {
        "mlp.gate_proj.weight": (inner, width),
        "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
    }


def norm_shapes(width: int, *names: str) -> Shapes:
    return {f"{name}.weight": (width,) for name in names}


def all_shapes(architecture: Architecture, config: GgufConfig) -> Shapes:
    """All weights of a model."""
    layer = architecture.layer_shapes(config)
    shapes = {
        f"model.layers.{number}.{name}": shape
        for number in range(config.num_hidden_layers)
        for name, shape in layer.items()
    }
    edges = ["model.embed_tokens"] if config.tie_word_embeddings else ["model.embed_tokens", "lm_head"]
    shapes |= {f"{name}.weight": (config.vocab_size, config.hidden_size) for name in edges}
    return shapes | {"model.norm.weight": (config.hidden_size,)}


def read_config(architecture: Architecture, given: Metadata) -> GgufConfig:
    """The settings of a model. Refuses what a damaged file may say, and what is not supported."""
    for name, neutral in _NEUTRAL.items():
        value = given.fields.get(f"{given.architecture}.{name}")
        if name not in architecture.understands and value is not None and value not in neutral:
            raise given.unsupported(f"{given.architecture}.{name} is")
    # Checked here, because configs make lists with an item per layer: a damaged number would fill the memory.
    layers = given.setting("block_count")
    there = len({name.split(".")[1] for name in given.tensors if name.startswith("blk.")})
    if layers != there:
        raise InputError(
            f"{given.path}: {given.architecture}.block_count says {layers} layers, but there are weights of {there}: "
            "fetch the file again"
        )
    config = _common_config(architecture.model_type, given, layers)
    for name in _COUNTS:
        given.checked_count(name, getattr(config, name))
    given.checked_number("rms_norm_eps", config.rms_norm_eps)
    if config.num_attention_heads % config.num_key_value_heads:
        raise InputError(
            f"{given.path}: says {config.num_attention_heads} heads for {config.num_key_value_heads} heads of keys, "
            "which do not divide them: fetch the file again"
        )
    if config.head_dim % 2:
        raise InputError(f"{given.path}: says heads of {config.head_dim} values, which is odd: fetch the file again")
    rotary = given.setting("rope.dimension_count", config.head_dim)
    if given.setting("attention.value_length", config.head_dim) != config.head_dim or (
        rotary != config.head_dim and "rope.dimension_count" not in architecture.understands
    ):
        raise given.unsupported(f"value heads or rotary dimensions of another size than {config.head_dim} are")
    architecture.adjust(given, config)
    return config


def _common_config(model_type: str, given: Metadata, layers: int) -> GgufConfig:
    heads, hidden = given.setting("attention.head_count"), given.setting("embedding_length")
    eos, padding = given.token_id("eos"), given.token_id("padding")
    return GgufConfig(
        model_type=model_type,
        vocab_size=len(given.fields["tokenizer.ggml.tokens"]),
        hidden_size=hidden,
        intermediate_size=given.setting("feed_forward_length"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=given.setting("attention.head_count_kv", heads),
        head_dim=given.setting("attention.key_length", hidden // heads),
        hidden_act="silu",
        max_position_embeddings=given.setting("context_length"),
        rms_norm_eps=given.setting("attention.layer_norm_rms_epsilon"),
        rope_parameters=rotary_positions(given),
        tie_word_embeddings="output.weight" not in given.tensors,
        bos_token_id=given.token_id("bos"),
        eos_token_id=eos,
        pad_token_id=eos if padding is None else padding,
    )


def rotary_positions(given: Metadata) -> dict[str, Any]:
    """transformers' parameters of rotary positions: plain, or stretched by a factor. A factor without a type means a
    linear one to llama.cpp."""
    theta = given.number("rope.freq_base", 10_000.0)
    factor = given.setting("rope.scaling.factor", given.setting("rope.scale_linear", 0))
    if factor in (0, 1) or given.setting("rope.scaling.type", "linear") == "none":
        return {"rope_type": "default", "rope_theta": theta}
    return {"rope_type": "linear", "rope_theta": theta, "factor": given.checked_number("rope.scaling.factor", factor)}
