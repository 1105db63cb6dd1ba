"""Draft models of the target's first layers: made, stored, loaded, and decoded with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from stridelm.model.draft_layers import first_layers, own_tensors
from stridelm.model.load import Checkpoint
from stridelm.params import InputError
from tiny import FAMILIES

IDS = torch.tensor([[1, 40, 7, 250, 9, 9, 3, 77, 120, 5, 61, 8, 34, 2, 17, 90, 4, 33]])
"""More tokens than the tiny models' sliding windows see."""


@torch.no_grad()
def logits_of(network: Any) -> torch.Tensor:
    """By transformers' own forward and attention."""
    before = network.config._attn_implementation
    network.set_attn_implementation("eager")
    logits = network(input_ids=IDS, use_cache=False).logits
    network.set_attn_implementation(before)
    return logits


def naive(folder: Path, family: str, count: int) -> PreTrainedModel:
    """The first layers as transformers makes them from the same weights: it leaves those of further layers aside."""
    changes: dict[str, Any] = {"num_hidden_layers": count}
    if getattr(FAMILIES[family], "layer_types", None) is not None:
        changes["layer_types"] = FAMILIES[family].layer_types[:count]
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **changes).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_all_layers_are_the_network(family: str, trainable: Callable[..., Checkpoint]) -> None:
    network = trainable(family).network
    torch.testing.assert_close(logits_of(first_layers(network, 2)), logits_of(network), rtol=0, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_layer_is_what_transformers_makes_of_the_same_weights(
    family: str, trainable: Callable[..., Checkpoint], tiny_folder: Callable[..., Path]
) -> None:
    network: Any = trainable(family).network
    draft = first_layers(network, 1)
    logits = logits_of(draft)
    torch.testing.assert_close(logits, logits_of(naive(tiny_folder(family), family, 1)), rtol=0, atol=0)
    assert not torch.allclose(logits, logits_of(network), atol=1e-2)
    assert network.config.num_hidden_layers == 2 and len(network.base_model.layers) == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_trained_is_its_own_and_the_large_matrices_are_not(
    family: str, trainable: Callable[..., Checkpoint]
) -> None:
    network = trainable(family).network
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    draft = first_layers(network, 1)
    assert draft.get_input_embeddings() is network.get_input_embeddings()
    assert draft.get_output_embeddings() is network.get_output_embeddings()
    own = own_tensors(draft)
    trained = {name for name, parameter in draft.named_parameters() if parameter.requires_grad}
    assert trained <= own.keys() and any(".layers.0." in name for name in own)
    assert {name for name in before if "norm" in name and ".layers." not in name} <= trained
    assert not [name for name in own if "embed" in name or "lm_head" in name or ".layers.1." in name]
    with torch.no_grad():
        for parameter in draft.parameters():
            if parameter.requires_grad:
                parameter.add_(1.0)
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_a_half_precision_network_gives_float32_layers(tiny_folder: Callable[..., Path]) -> None:
    network = AutoModelForCausalLM.from_pretrained(tiny_folder(), dtype=torch.bfloat16).requires_grad_(False)
    draft = first_layers(network, 1)
    assert {tensor.dtype for tensor in own_tensors(draft).values()} == {torch.float32}
    assert draft.get_input_embeddings().weight.dtype == torch.bfloat16


@pytest.mark.parametrize("count", [0, -1, 3])
def test_a_number_of_layers_that_the_model_has_not_is_refused(count: int, trainable: Callable[..., Checkpoint]) -> None:
    with pytest.raises(InputError, match=f"between 1 and all 2 layers of llama, not {count}"):
        first_layers(trainable().network, count)
