"""Language models put together from what tests have loaded."""

from dataclasses import replace
from pathlib import Path

from stridelm.api import LanguageModel
from stridelm.backends.network import loaded_model
from stridelm.backends.torch.assistant import load_assistant
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.backends.torch.gated import TorchGate
from stridelm.backends.torch.heads import TorchHeads
from stridelm.settings import LoadSettings
from tiny import random_heads


def assembled(
    target: Checkpoint,
    draft: Checkpoint | None,
    settings: LoadSettings,
    gate: TorchGate | None = None,
    heads: TorchHeads | None = None,
) -> LanguageModel:
    return LanguageModel(loaded_model(target, settings, gate=gate, draft=draft, heads=heads), settings)


def checkpoint_of(model: LanguageModel) -> Checkpoint:
    assert isinstance(model.target, Checkpoint)
    return model.target


def gate_of(model: LanguageModel) -> TorchGate:
    assert isinstance(model.gate, TorchGate)
    return model.gate


def with_random_heads(model: LanguageModel) -> LanguageModel:
    """The same model with heads, and with caches of its own."""
    loaded = model.twin().loaded
    return LanguageModel(replace(loaded, heads=random_heads(checkpoint_of(model))), model.settings)


def with_assistant(model: LanguageModel, folder: Path) -> LanguageModel:
    """The same model with a Gemma 4 assistant in its draft model's place, and with caches of its own."""
    loaded = replace(model.twin().loaded, draft=None)
    assistant = load_assistant(folder, checkpoint_of(model), loaded.forward)
    return LanguageModel(replace(loaded, assistant=assistant), model.settings)
