"""What a model's config says about its layers, and which models are refused because of it."""

from typing import TYPE_CHECKING, Any

from stridelm.params import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

ASSISTANT = "gemma4_assistant"
_KNOWN_LAYERS = {"full_attention", "sliding_attention"}
_RECURRENT = {"linear_attention", "hybrid", "mamba", "recurrent", "conv"}
_LENGTH_DEPENDENT_ROTARY = {"dynamic", "longrope"}


class UnsupportedModel(InputError):
    """The model needs something that our attention does not support."""


def check_config(whole: "PreTrainedConfig") -> None:
    """Refuse models with features that our attention does not support; the message names the feature."""
    family, config = whole.model_type, whole.get_text_config()
    if getattr(whole, "is_encoder_decoder", False):
        raise UnsupportedModel(f"{family} is an encoder-decoder model: only decoder-only models are supported")
    if family.endswith("_assistant"):
        raise UnsupportedModel(
            f"{family} is no language model by itself. Of its kind, {ASSISTANT} can draft for the model that it was "
            "made for: give that one's folder with --model, and the assistant's with --draft-model"
        )
    unknown = sorted(set(getattr(config, "layer_types", None) or ()) - _KNOWN_LAYERS)
    if not hasattr(config, "num_attention_heads") or _RECURRENT & set(unknown):
        kinds = f" (layers of kind {', '.join(unknown)})" if unknown else ""
        raise UnsupportedModel(
            f"{family} keeps a recurrent state{kinds}, which cannot be rolled back to an accepted draft: only models "
            "whose layers all attend are supported"
        )
    if unknown:
        raise UnsupportedModel(f"{family} has layers of kind {', '.join(unknown)}, which StrideLM does not do")
    for name in ("attention_chunk_size", "alibi", "use_bidirectional_attention"):
        # Gemma 4 uses bidirectional attention within images only ("vision"), and texts have no images.
        if getattr(config, name, None) not in (None, False, "vision"):
            raise UnsupportedModel(f"{family} uses {name}, which StrideLM does not do")
    rotary = _rotary_types(getattr(config, "rope_parameters", None)) & _LENGTH_DEPENDENT_ROTARY
    if rotary:
        raise UnsupportedModel(
            f"{family} uses rotary positions of type {', '.join(sorted(rotary))}: they change with the length of the "
            "text, so cached keys would go stale"
        )


def _rotary_types(parameters: Any) -> set[str]:
    """The rotary types named in a config, which may have one set of parameters or one per kind of layer."""
    if not isinstance(parameters, dict):
        return set()
    nested = [_rotary_types(value) for value in parameters.values()]
    kind = str(parameters.get("rope_type", "default"))
    if kind == "longrope" and parameters.get("short_factor") == parameters.get("long_factor"):
        kind = "default"  # the same for short and long texts: it does not depend on the length
    return {kind}.union(*nested)


def layer_window(config: "PreTrainedConfig", layer: int) -> int | None:
    """The sliding window of a layer, by the config; None if it has none."""
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if kinds is not None:
        return window if kinds[layer] == "sliding_attention" else None
    return window if getattr(config, "use_sliding_window", True) else None


def lending_layers(config: "PreTrainedConfig") -> dict[str, int]:
    """Kind of layer -> the last one of that kind with its own keys and values; later ones (Gemma 4) read these."""
    kinds = getattr(config, "layer_types", None) or []
    return {kind: layer for layer, kind in enumerate(kinds[: len(kinds) - _borrowers(config)])}


def borrowed_layers(config: "PreTrainedConfig") -> dict[int, int]:
    """Layers without their own keys and values -> the layer whose keys and values they read."""
    kinds, lending = getattr(config, "layer_types", None) or [], lending_layers(config)
    first = len(kinds) - _borrowers(config)
    return {layer: lending[kind] for layer, kind in enumerate(kinds) if layer >= first and kind in lending}


def _borrowers(config: "PreTrainedConfig") -> int:
    return int(getattr(config, "num_kv_shared_layers", None) or 0)
