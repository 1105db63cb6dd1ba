"""A draft model made of the target's first layers, with the target's own embedding and output matrix.

Only its layers and its final norm are trained, stored (docs/adapter-format.md) and loaded beside the target; the two
large matrices are shared.
"""

import copy
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from stridelm.backends.torch.checkpoint import Checkpoint, make_ready
from stridelm.backends.torch.linear import replace
from stridelm.models.fingerprint import fingerprint
from stridelm.models.network import build_network
from stridelm.models.parts import Kind, check_base, check_tensors, load_part, save_part
from stridelm.models.store import read_weights
from stridelm.models.support import UnsupportedModel
from stridelm.params import InputError

DRAFT = Kind("draft", "draft.json", "stridelm-draft")
_PER_LAYER = ("layer_types", "mlp_layer_types", "no_rope_layers")
"""Settings of transformers' models with one entry per layer. Lists of layer numbers need no change."""


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """What `draft.json` holds beside the format's name and version."""

    base: str
    """The target's name when the draft model was trained."""
    fingerprint: str
    """Of the target's weights: `stridelm.models.fingerprint.fingerprint`."""
    layers: int


def first_layers(network: PreTrainedModel, count: int) -> PreTrainedModel:
    """A network of the first `count` layers of one that transformers made.

    Layers and final norm are copies in float32, to be trained; the embedding and the output matrix are the network's
    own modules, and stay as they are.
    """
    layers: Any = getattr(network.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise UnsupportedModel(f"{network.config.model_type} does not keep its layers in one list: not supported")
    config = cut_config(network.config, count)
    # The memo of deepcopy: objects with these ids are not copied, but replaced by the values given here.
    instead: dict[int, Any] = {id(module): module for module in _shared(network)}
    instead[id(network.config)] = config
    instead[id(layers)] = nn.ModuleList(copy.deepcopy(layer, instead) for layer in layers[:count])
    draft = copy.deepcopy(network, instead)
    kept = {id(parameter) for module in _shared(network) for parameter in module.parameters()}
    for parameter in draft.parameters():
        if id(parameter) not in kept:
            parameter.data = parameter.data.float()
            parameter.requires_grad_()
    return draft


def cut_config(config: PreTrainedConfig, count: int) -> PreTrainedConfig:
    """A model's config, reduced to its first `count` layers."""
    layers = int(config.get_text_config().num_hidden_layers)
    if not 1 <= count <= layers:
        raise InputError(f"a draft model takes between 1 and all {layers} layers of {config.model_type}, not {count}")
    cut = copy.deepcopy(config)
    text: Any = cut.get_text_config()
    text.num_hidden_layers = count
    if borrowing := getattr(text, "num_kv_shared_layers", None):  # these are always the last layers
        text.num_kv_shared_layers = max(0, borrowing - (layers - count))
    for name in _PER_LAYER:
        if getattr(text, name, None) is not None:
            setattr(text, name, getattr(text, name)[:count])
    return cut


def own_tensors(network: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The tensors that a draft model stores, by name: all but the embedding and the output matrix."""
    shared = {id(module) for module in _shared(network)}
    prefixes = tuple(f"{name}." for name, module in network.named_modules() if id(module) in shared)
    return {name: tensor for name, tensor in network.state_dict().items() if not name.startswith(prefixes)}


def _shared(network: PreTrainedModel) -> tuple[Any, Any]:
    return network.get_input_embeddings(), network.get_output_embeddings()


def save_draft(folder: Path, config: DraftConfig, network: PreTrainedModel) -> None:
    """`network`: as made by `first_layers`."""
    assert network.config.get_text_config().num_hidden_layers == config.layers
    save_part(folder, DRAFT, config, own_tensors(network))


def is_draft(folder: Path) -> bool:
    return (folder / DRAFT.file).is_file()


def load_draft(folder: Path, target: Checkpoint) -> Checkpoint:
    """Load a draft model from a folder, ready to run beside its target and with the target's two matrices."""
    config, tensors = _read(folder, target)
    settings = cut_config(target.network.config, config.layers)
    text, whole = settings.get_text_config(), target.network.config.get_text_config()
    # A vocabulary of one token: its matrices are replaced by the target's, so large ones are never allocated.
    text.vocab_size, text.pad_token_id = 1, None
    with torch.device("meta"):
        empty: PreTrainedModel = type(target.network)(settings)
    _check(folder, tensors, empty)
    placeholders = {
        name: torch.zeros(tensor.shape) for name, tensor in empty.state_dict().items() if name not in tensors
    }
    network = build_network(str(folder), settings, tensors | placeholders, target.network.device, target.network.dtype)
    for own, shared in zip(_shared(network), _shared(target.network), strict=True):
        owner, _, name = next(name for name, module in network.named_modules() if module is own).rpartition(".")
        replace(network.get_submodule(owner), name, shared)
    text = network.config.get_text_config()
    text.vocab_size, text.pad_token_id = whole.vocab_size, whole.pad_token_id
    make_ready(network, trainable=False)
    return dataclasses.replace(target, name=str(folder), network=network, fingerprint=fingerprint(tensors))


def load_layers(folder: Path, base: Checkpoint) -> PreTrainedModel:
    """Load a draft model from a folder in the form that `first_layers` makes; `base` was loaded as trainable."""
    config, tensors = _read(folder, base)
    network = first_layers(base.network, config.layers)
    _check(folder, tensors, network)
    network.load_state_dict(tensors, strict=False)
    return network


def _read(folder: Path, base: Checkpoint) -> tuple[DraftConfig, dict[str, torch.Tensor]]:
    file = folder / DRAFT.file
    if not file.is_file():
        raise InputError(
            f"{folder}: no {DRAFT.file} there, so it is not a draft model of first layers: make one with "
            f"`stridelm train --mode draft --model {base.name}`"
        )
    _, config, tensors = load_part(folder, (DRAFT,), DraftConfig, read_weights)
    remedy = f"use the draft of this model, or train one with `stridelm train --mode draft --model {base.name}`"
    check_base(folder, DRAFT, (str(config.base), str(config.fingerprint)), (base.name, base.fingerprint), remedy)
    layers = base.network.config.get_text_config().num_hidden_layers
    if type(config.layers) is not int or not 1 <= config.layers <= layers:
        raise InputError(f"{file}: names {config.layers!r} layers, but {base.name} has {layers}: copy the draft again")
    return config, tensors


def _check(folder: Path, tensors: dict[str, torch.Tensor], network: PreTrainedModel) -> None:
    """Check that the tensors are exactly those of this network."""
    check_tensors(folder, DRAFT, tensors, {name: tuple(each.shape) for name, each in own_tensors(network).items()})
