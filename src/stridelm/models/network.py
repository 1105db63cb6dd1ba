"""Builds transformers' network of a model and loads its weights."""

from typing import Any, cast

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from stridelm.models.folder_settings import quiet
from stridelm.models.support import UnsupportedModel
from stridelm.params import InputError

logging.disable_progress_bar()  # transformers would show one for weights that are already in memory


def build_network(
    name: str,
    config: PreTrainedConfig,
    weights: dict[str, torch.Tensor],
    device: torch.device,
    dtype: torch.dtype,
    *,
    attention: str = "eager",
) -> PreTrainedModel:
    """The model with its weights. Refuses weights that do not fit the config: missing, left over or of another shape.
    `attention`: the name of an attention function that is registered with transformers."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModel(f"{name}: {config.model_type} is not a causal language model of transformers")
    family = cast(type[PreTrainedModel], MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])
    try:
        with quiet():
            loaded: Any = family.from_pretrained(
                None,
                config=config,
                state_dict=weights,
                dtype=dtype,
                attn_implementation=attention,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except (
        ValueError,
        RuntimeError,
        KeyError,
        ImportError,
        AssertionError,
        ArithmeticError,
        AttributeError,
        TypeError,
    ) as error:
        raise InputError(f"{name}: the weights cannot be put into a {config.model_type} model ({error})") from error
    network, report = loaded
    wrong = sorted(key for key, *_ in report["mismatched_keys"]) + sorted(report["missing_keys"])
    # Other parts of a larger model (a vision tower) may be left over, but no layers of this one.
    wrong += sorted(key for key in report["unexpected_keys"] if key.startswith("model.layers."))
    if wrong:
        raise InputError(
            f"{name}: the weights do not fit config.json: {wrong[0]} is missing, left over or of another shape, "
            f"{len(wrong)} such in all"
        )
    return network.to(device).eval().requires_grad_(False)
