"""Which models StrideLM can run: what their settings say, then a trial of our forward against the model's own."""

from itertools import pairwise
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from stridelm.backends.torch.attention import NAME, UnsupportedModel, layer_window
from stridelm.backends.torch.forward import TorchForward
from stridelm.contracts import Forward
from stridelm.layout import lay_out, make_block

ASSISTANT = "gemma4_assistant"
_KNOWN_LAYERS = {"full_attention", "sliding_attention"}
_RECURRENT = {"linear_attention", "hybrid", "mamba", "recurrent", "conv"}
_LENGTH_DEPENDENT_ROTARY = {"dynamic", "longrope"}
_TRIAL_STEPS = (0, 4, 5, 6)
TRIAL_TOKENS = _TRIAL_STEPS[-1]
TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-1, torch.bfloat16: 5e-1}
# bfloat16 is that coarse: the built-in model's own logits on a GPU are a tenth away from float32's. Wrong attention, as
# cuDNN's was, showed as more than one.


def check_config(whole: PreTrainedConfig) -> None:
    """Refuse, by name, what our attention would have to do otherwise."""
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
        # Gemma 4's pictures see themselves whole; texts have none of them.
        if getattr(config, name, None) not in (None, False, "vision"):
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
def own_logits(network: PreTrainedModel) -> torch.Tensor:
    """What the model, as transformers made it, says after each of a few tokens."""
    network.set_attn_implementation("eager")
    ids = torch.tensor([trial_ids(network)], device=network.device)
    return network(input_ids=ids, use_cache=False).logits[0].float()


def check_logits(network: PreTrainedModel, expected: torch.Tensor) -> None:
    """Refuse a model that says something else through our attention, cache and layers.

    The tokens come in three steps, several rows and then single ones: so positions, the cache and the choice of wanted
    rows are on trial, too.
    """
    config, family = network.config.get_text_config(), network.config.model_type
    forward = TorchForward(network, TRIAL_TOKENS)
    try:
        network.set_attn_implementation(NAME)
        actual = trial_logits(forward, network)
    except UnsupportedModel:
        raise
    except (ValueError, TypeError, KeyError, RuntimeError, AttributeError, IndexError, AssertionError) as error:
        raise UnsupportedModel(f"{family} does not run through StrideLM's attention: {error}") from error
    if len(forward.windows) != config.num_hidden_layers:
        raise UnsupportedModel(
            f"{family} has {config.num_hidden_layers} layers, but only {len(forward.windows)} of them attend through "
            "transformers' attention interface: recurrent state or attention of a model's own is not supported"
        )
    for layer, window in forward.windows.items():
        if window != layer_window(config, layer):
            raise UnsupportedModel(
                f"{family} does not tell attention the sliding window of layer {layer}: not supported"
            )
    compared = expected[[end - 1 for end in _TRIAL_STEPS[1:]]]
    apart = distance(compared, actual)
    if not apart <= TOLERANCE[network.dtype]:
        raise UnsupportedModel(
            f"{family} gives other logits through StrideLM's forward (relative difference {apart:.1e}): not supported"
        )


def trial_logits(forward: Forward, network: PreTrainedModel) -> torch.Tensor:
    """What a forward of this network says behind each step of the trial."""
    table, ids, actual = forward.cache.open(), trial_ids(network), []
    for start, end in pairwise(_TRIAL_STEPS):
        (output,) = forward(lay_out([make_block(start, ids[start:end])]), [table])
        actual.append(output.logits_WV)
        forward.cache.keep(table, range(end - start))
    forward.cache.free(table)
    return torch.cat(actual)


def distance(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """The largest difference, the largest logit being 1."""
    return float((expected - actual).abs().max() / expected.abs().max())


def trial_ids(network: PreTrainedModel) -> list[int]:
    vocabulary = network.config.get_text_config().vocab_size
    return [token % vocabulary for token in range(1, TRIAL_TOKENS + 1)]
