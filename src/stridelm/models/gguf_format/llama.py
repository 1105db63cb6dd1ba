"""Llama, Qwen 2 and Qwen 3: layers of two norms, attention and a gated product."""

from stridelm.models.gguf_format.architecture import (
    Architecture,
    Shapes,
    attention_shapes,
    gated_shapes,
    norm_shapes,
)
from stridelm.models.gguf_format.llama3_rope import llama3_parameters
from stridelm.models.gguf_format.metadata import GgufConfig, Metadata

_FACTORS = "rope_freqs.weight"


def plain_layer(config: GgufConfig) -> Shapes:
    return {
        **attention_shapes(config),
        **gated_shapes(config.hidden_size, config.intermediate_size),
        **norm_shapes(config.hidden_size, "input_layernorm", "post_attention_layernorm"),
    }


def _qwen2_layer(config: GgufConfig) -> Shapes:
    layer = plain_layer(config)
    biases = {f"self_attn.{name}_proj.bias": layer[f"self_attn.{name}_proj.weight"][:1] for name in "qkv"}
    return layer | biases


def head_norms(config: GgufConfig) -> Shapes:
    return norm_shapes(config.head_dim, "self_attn.q_norm", "self_attn.k_norm")


def as_it_is(_given: Metadata, _config: GgufConfig) -> None:
    """The common settings are all there is."""


def _adjust_llama(given: Metadata, config: GgufConfig) -> None:
    factors = given.factors(_FACTORS, config.head_dim // 2)
    if factors is None or set(factors) == {1.0}:
        return
    plain = config.rope_parameters
    found = llama3_parameters(factors, plain["rope_theta"]) if plain["rope_type"] == "default" else None
    if found is None:
        raise given.unsupported(f"{_FACTORS} with other factors than Llama 3's is")
    config.rope_parameters = found


LLAMA = Architecture("llama", plain_layer, _adjust_llama, setting_tensors=frozenset({_FACTORS}), reorders_heads=True)
QWEN2 = Architecture("qwen2", _qwen2_layer, as_it_is)
QWEN3 = Architecture("qwen3", lambda config: plain_layer(config) | head_norms(config), as_it_is)
