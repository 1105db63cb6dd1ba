"""Which models StrideLM can run: what their settings say, then a trial of our forward against the model's own."""

from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from stridelm.layout import lay_out, make_block
from stridelm.model.attention import NAME, Step, UnsupportedModel
from stridelm.model.kv_cache import KVCache

_KNOWN_LAYERS = {"full_attention", "sliding_attention"}
_LENGTH_DEPENDENT_ROTARY = {"dynamic", "longrope"}
_TRIAL_TOKENS = 6
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def check_config(config: PreTrainedConfig) -> None:
    """Refuse, by name, what our attention would have to do otherwise."""
    family = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"{family} is an encoder-decoder model: only decoder-only models are supported")
    unknown = sorted(set(getattr(config, "layer_types", None) or ()) - _KNOWN_LAYERS)
    if unknown:
        raise UnsupportedModel(f"{family} has layers of kind {', '.join(unknown)}, which StrideLM does not do")
    for name in ("attention_chunk_size", "alibi", "use_bidirectional_attention"):
        if getattr(config, name, None):
            raise UnsupportedModel(f"{family} uses {name}, which StrideLM does not do")
    rotary = _rotary_types(getattr(config, "rope_parameters", None)) & _LENGTH_DEPENDENT_ROTARY
    if rotary:
        raise UnsupportedModel(
            f"{family} uses rotary positions of type {', '.join(sorted(rotary))}: they change with the length of the "
            "text, so cached keys would go stale"
        )


def _rotary_types(parameters: Any) -> set[str]:
    """The rotary types named in a config, which may keep one set of parameters or one per kind of layer."""
    if not isinstance(parameters, dict):
        return set()
    nested = [_rotary_types(value) for value in parameters.values()]
    return {str(parameters.get("rope_type", "default"))}.union(*nested)


@torch.inference_mode()
def try_out(network: PreTrainedModel) -> None:
    """Run a few tokens through our forward and through the model's own; refuse the model if they disagree."""
    config, family = network.config, network.config.model_type
    ids = [token % config.get_text_config().vocab_size for token in range(1, _TRIAL_TOKENS + 1)]
    cache = KVCache(_TRIAL_TOKENS)
    table = cache.open()
    rows = lay_out([make_block(0, ids)])
    cache.append(table, len(ids))
    step = Step(rows, cache, [table], network.device, network.dtype)
    input_ids = torch.tensor([ids], device=network.device)
    position_ids = torch.arange(len(ids), device=network.device)[None]
    try:
        network.set_attn_implementation("eager")
        expected = network(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits.float()
        network.set_attn_implementation(NAME)
        actual = network(input_ids=input_ids, position_ids=position_ids, use_cache=False, stride_step=step).logits.float()
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, UnsupportedModel):
            raise
        raise UnsupportedModel(f"{family} does not take an attention function from outside: {error}") from error
    layers = config.get_text_config().num_hidden_layers
    if len(step.windows) != layers:
        raise UnsupportedModel(
            f"{family} has {layers} layers, but only {len(step.windows)} of them attend through transformers' attention "
            "interface: models with recurrent state or attention of their own are not supported"
        )
    for layer, window in step.windows.items():
        if window != _expected_window(config.get_text_config(), layer):
            raise UnsupportedModel(f"{family} does not tell attention the sliding window of layer {layer}: not supported")
    apart = float((expected - actual).abs().max() / expected.abs().max())
    if not apart <= _TOLERANCE[network.dtype]:
        raise UnsupportedModel(
            f"{family} gives other logits through StrideLM's attention (relative difference {apart:.1e}): not supported"
        )


def _expected_window(config: PreTrainedConfig, layer: int) -> int | None:
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if kinds is not None:
        return window if kinds[layer] == "sliding_attention" else None
    return window if getattr(config, "use_sliding_window", True) else None
