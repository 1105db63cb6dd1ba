"""Language models put together from what tests have loaded."""

from dataclasses import replace

from stridelm.api import LanguageModel
from stridelm.model.gated import TorchGate
from stridelm.model.heads import TorchHeads
from stridelm.model.load import Checkpoint
from stridelm.model.torch_backend import parts_of
from stridelm.settings import LoadSettings
from tiny import random_heads


def assembled(
    target: Checkpoint,
    draft: Checkpoint | None,
    settings: LoadSettings,
    gate: TorchGate | None = None,
    heads: TorchHeads | None = None,
) -> LanguageModel:
    return LanguageModel(parts_of(target, settings, gate=gate, draft=draft, heads=heads), settings)


def checkpoint_of(model: LanguageModel) -> Checkpoint:
    assert isinstance(model.target, Checkpoint)
    return model.target


def gate_of(model: LanguageModel) -> TorchGate:
    assert isinstance(model.gate, TorchGate)
    return model.gate


def with_random_heads(model: LanguageModel) -> LanguageModel:
    """The same model with heads, and with caches of its own."""
    parts = model.twin().parts
    return LanguageModel(replace(parts, heads=random_heads(checkpoint_of(model))), model.settings)
