"""Checks our forward pass against the network's own: the logits must be the same as transformers'."""

import torch
from transformers import PreTrainedModel

from stridelm.backends.common.trial import TOLERANCE, TRIAL_STEPS, TRIAL_TOKENS, distance, trial_ids, trial_logits
from stridelm.backends.torch.attention import NAME
from stridelm.backends.torch.forward import TorchForward
from stridelm.models.support import UnsupportedModel, layer_window


@torch.inference_mode()
def own_logits(network: PreTrainedModel) -> torch.Tensor:
    """The logits of the model, as transformers made it, after each of a few tokens."""
    network.set_attn_implementation("eager")
    ids = torch.tensor([trial_ids(network)], device=network.device)
    return network(input_ids=ids, use_cache=False).logits[0].float()


def check_logits(network: PreTrainedModel, expected: torch.Tensor) -> None:
    """Refuse a model whose logits differ with our attention, cache and layers.

    The tokens are run in three steps, one of several rows and two of single rows, so that positions, the cache and the
    choice of wanted rows are tested, too.
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
    compared = expected[[end - 1 for end in TRIAL_STEPS[1:]]]
    apart = distance(compared, actual)
    if not apart <= TOLERANCE[network.dtype]:
        raise UnsupportedModel(
            f"{family} gives other logits through StrideLM's forward (relative difference {apart:.1e}): not supported"
        )
