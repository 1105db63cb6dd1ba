"""Gemma 2 and 3: four norms per layer, sliding and full layers, soft caps or norms of queries and keys."""

from stridelm.models.gguf_format.architecture import (
    NAMES,
    Architecture,
    Shapes,
    attention_shapes,
    gated_shapes,
    norm_shapes,
)
from stridelm.models.gguf_format.llama import head_norms
from stridelm.models.gguf_format.metadata import GgufConfig, Metadata
from stridelm.params import InputError

_NAMES = NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_SLIDING = frozenset({"attention.sliding_window", "rope.freq_base_swa"})
# The largest models divide by another size than a head's. Files do not say so; llama.cpp knows them by their layers.
_LARGEST_GEMMA2, _LARGEST_GEMMA3 = 46, 62


def _layer(config: GgufConfig) -> Shapes:
    norms = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    return {
        **attention_shapes(config),
        **gated_shapes(config.hidden_size, config.intermediate_size),
        **norm_shapes(config.hidden_size, *norms),
    }


def _adjust_gemma2(given: Metadata, config: GgufConfig) -> None:
    _adjust_both(config, _LARGEST_GEMMA2)
    config.attn_logit_softcapping = given.number("attn_logit_softcapping", 50.0)
    config.final_logit_softcapping = given.number("final_logit_softcapping", 30.0)
    config.sliding_window = given.count("attention.sliding_window", 4096)
    config.layer_types = _layer_types(given, config.num_hidden_layers, 2)
    theta = config.rope_parameters["rope_theta"]
    if given.number("rope.freq_base_swa", theta) != theta:
        raise given.unsupported("rotary positions of sliding layers with another base are")


def _adjust_gemma3(given: Metadata, config: GgufConfig) -> None:
    _adjust_both(config, _LARGEST_GEMMA3)
    cap = given.setting("final_logit_softcapping", 0)
    config.final_logit_softcapping = given.checked_number("final_logit_softcapping", cap) if cap != 0 else None
    config.attn_logit_softcapping = None
    if given.setting("attention.sliding_window", 0) == 0:
        # No layer has a window then; transformers wants one all the same.
        config.sliding_window = config.max_position_embeddings
        config.layer_types = ["full_attention"] * config.num_hidden_layers
    else:
        config.sliding_window = given.count("attention.sliding_window")
        config.layer_types = _layer_types(given, config.num_hidden_layers, 6)
    # A factor stretches the full layers only.
    config.rope_parameters = {
        "full_attention": config.rope_parameters,
        "sliding_attention": {"rope_type": "default", "rope_theta": given.number("rope.freq_base_swa", 10_000.0)},
    }


def _adjust_both(config: GgufConfig, largest: int) -> None:
    del config.hidden_act
    config.hidden_activation = "gelu_pytorch_tanh"
    is_largest = config.num_hidden_layers == largest
    config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads if is_largest else config.head_dim


def _layer_types(given: Metadata, layers: int, default: int) -> list[str]:
    """The last layer of each period is a full one. llama.cpp does not read a list here."""
    period = given.setting("attention.sliding_window_pattern", default)
    if isinstance(period, list):
        period = default
    if type(period) is not int or period < 0:
        raise InputError(
            f"{given.path}: says {period!r} for attention.sliding_window_pattern, which must be a whole number: fetch "
            "the file again"
        )
    return [
        "sliding_attention" if period == 0 or layer % period < period - 1 else "full_attention"
        for layer in range(layers)
    ]


GEMMA2 = Architecture(
    "gemma2",
    _layer,
    _adjust_gemma2,
    _SLIDING | {"attn_logit_softcapping", "final_logit_softcapping"},
    _NAMES,
    adds_one_to_norms=True,
)
GEMMA3 = Architecture(
    "gemma3_text",
    lambda config: _layer(config) | head_norms(config),
    _adjust_gemma3,
    _SLIDING | {"final_logit_softcapping"},
    _NAMES,
    adds_one_to_norms=True,
)
