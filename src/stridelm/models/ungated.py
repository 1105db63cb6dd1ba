"""Adapters without a gate: merged into the base model when it is loaded, so that all rows pass through them.

Only the mask embeddings, and a sequential head if there is one, remain beside the merged weights. So for the rest of
StrideLM the model has an adapter without low-rank parts, like a model whose mask is one of its own tokens.
"""

from dataclasses import replace

import torch
from torch import nn
from transformers import PreTrainedModel

from stridelm.models.adapter import Adapter
from stridelm.params import InputError


@torch.no_grad()
def merge(network: PreTrainedModel, adapter: Adapter) -> None:
    """Add the low-rank parts to the weights of a network as transformers made it."""
    for target in adapter.config.targets:
        try:
            linear = network.get_submodule(target)
        except AttributeError:
            linear = None
        down_RI, up_OR = (factor.to(network.device, torch.float32) for factor in adapter.low_rank(target))
        if not isinstance(linear, nn.Linear) or linear.weight.shape != (len(up_OR), down_RI.shape[1]):
            raise InputError(
                f"the adapter changes {target}, but {network.config.model_type} has no such linear layer: use the "
                "adapter of this model"
            )
        linear.weight.copy_(linear.weight.float() + up_OR @ down_RI)


def masks_alone(adapter: Adapter) -> Adapter:
    """What remains of an adapter once its low-rank parts are merged."""
    low_rank = tuple(f"{target}.{factor}" for target in adapter.config.targets for factor in ("down", "up"))
    tensors = {name: tensor for name, tensor in adapter.tensors.items() if name not in low_rank}
    return Adapter(replace(adapter.config, targets=(), rank=0), tensors)
