"""Phi-3 and Phi-4: queries, keys and values in one matrix, gate and up in another, factors for long texts."""

import logging
from typing import Any

from stridelm.models.gguf_format.architecture import NAMES, Architecture, Shapes, norm_shapes
from stridelm.models.gguf_format.metadata import GgufConfig, Metadata
from stridelm.params import InputError

log = logging.getLogger("stridelm")

_SHORT, _LONG = "rope_factors_short.weight", "rope_factors_long.weight"
_UNDERSTANDS = {"rope.dimension_count", "rope.scaling.type", "rope.scaling.attn_factor", "attention.sliding_window"}


def _layer(config: GgufConfig) -> Shapes:
    width, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    return {
        "self_attn.qkv_proj.weight": (queries + 2 * keys, width),
        "self_attn.o_proj.weight": (width, queries),
        "mlp.gate_up_proj.weight": (2 * inner, width),
        "mlp.down_proj.weight": (width, inner),
        **norm_shapes(width, "input_layernorm", "post_attention_layernorm"),
    }


def _adjust(given: Metadata, config: GgufConfig) -> None:
    window = given.setting("attention.sliding_window", 0)
    config.sliding_window = given.checked_count("attention.sliding_window", window) if window != 0 else None
    rotary = given.count("rope.dimension_count", config.head_dim)
    if rotary > config.head_dim or rotary % 2:
        raise InputError(
            f"{given.path}: says {rotary} rotary dimensions of {config.head_dim} in a head, which must be an even part "
            "of them: fetch the file again"
        )
    kind = given.setting("rope.scaling.type", "none")
    if kind not in ("none", "longrope", "linear") or config.rope_parameters["rope_type"] != "default":
        raise given.unsupported(f"rotary positions of type {kind!r} for {given.architecture} are")
    config.rope_parameters["partial_rotary_factor"] = rotary / config.head_dim
    config.rope_parameters |= _long_rope(given, config, rotary // 2)


def _long_rope(given: Metadata, config: GgufConfig, count: int) -> dict[str, Any]:
    """The parameters for texts up to the length that the model was first trained with, which becomes the context.
    Longer texts have other factors, from their first token on, so cached keys would go stale. llama.cpp chooses by the
    size of its context: with one of up to this length it computes the same."""
    short, long = given.factors(_SHORT, count), given.factors(_LONG, count)
    scale = given.number("rope.scaling.attn_factor", 1.0)
    if short is None or long is None:
        if short is not long or scale != 1:
            raise InputError(f"{given.path}: {_SHORT} or {_LONG} is missing: fetch the file again")
        return {}
    context = given.count("rope.scaling.original_context_length", config.max_position_embeddings)
    if context < config.max_position_embeddings:
        log.warning(
            "%s: texts of up to %d tokens (%d with factors that change with the length, which are not supported)",
            given.path, context, config.max_position_embeddings,
        )  # fmt: skip
        config.max_position_embeddings = context
    config.original_max_position_embeddings = config.max_position_embeddings
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": short,
        "original_max_position_embeddings": config.max_position_embeddings,
        "factor": 1.0,
        "attention_factor": scale,
    }


PHI3 = Architecture(
    "phi3",
    _layer,
    _adjust,
    frozenset(_UNDERSTANDS),
    NAMES | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    setting_tensors=frozenset({_SHORT, _LONG}),
)
