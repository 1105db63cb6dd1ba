"""Models that are loaded as transformers' network: they run on the GPU kernels if these support them, otherwise on
torch."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from stridelm.backends.common.gate import TensorGate
from stridelm.backends.common.trial import TRIAL_TOKENS
from stridelm.backends.gpu.load import stacked
from stridelm.backends.gpu.weights import Weights
from stridelm.backends.torch.assistant import assistant_folder, load_assistant
from stridelm.backends.torch.checkpoint import Checkpoint
from stridelm.backends.torch.converted import load_converted
from stridelm.backends.torch.draft_source import load_given_draft, own_draft_loader
from stridelm.backends.torch.forward import TorchForward
from stridelm.backends.torch.gated import TorchGate, attach
from stridelm.backends.torch.heads import TorchHeads, heads_for, load_heads
from stridelm.contracts import Forward
from stridelm.models.adapter import load_adapter
from stridelm.models.preview import adapter_folder, heads_k, own_heads
from stridelm.models.target import Draft, LoadedModel, OwnHeads
from stridelm.settings import AUTO_DTYPE, LoadSettings, ModelChoice


def load_model(choice: ModelChoice) -> LoadedModel:
    settings, draft_model = choice.settings, choice.draft_model
    heads_folder = None if choice.heads is None else Path(choice.heads)
    folder = adapter_folder(choice.model, choice.adapter)
    # Small files first, so that errors in them are found before the weights are read.
    adapted = (folder, load_adapter(folder)) if folder else None
    predicting = load_heads(heads_folder) if heads_folder is not None else None
    target, converted = load_converted(choice.model, settings, adapted)
    assisting = assistant_folder(draft_model) if draft_model else None
    draft = load_given_draft(draft_model, target, settings) if draft_model and not assisting else None
    on_gpu = stacked(target.network, converted, TorchForward(target.network, TRIAL_TOKENS))
    if on_gpu is None and settings.dtype == AUTO_DTYPE and target.network.dtype != torch.float32:
        del target  # half precision was chosen for the kernels, which are exact in it
        return load_model(replace(choice, settings=replace(settings, dtype="float32")))
    given = None if heads_folder is None or predicting is None else heads_for(target, heads_folder, *predicting)
    if on_gpu is not None:
        target = replace(target, has_own_rows=True)
        loaded = loaded_model(target, settings, gate=on_gpu.gate, weights=on_gpu.weights, draft=draft, heads=given)
    else:
        gate = None if converted is None else attach(target.network, converted)
        loaded = loaded_model(target, settings, gate=gate, draft=draft, heads=given)
    return replace(loaded, assistant=load_assistant(assisting, target, loaded.forward)) if assisting else loaded


def loaded_model(
    target: Checkpoint,
    settings: LoadSettings,
    *,
    gate: TensorGate | None = None,
    weights: Weights | None = None,
    draft: Checkpoint | None = None,
    heads: TorchHeads | None = None,
) -> LoadedModel:
    """`gate`: what `attach` returned for the target's network, or the gate that belongs to `weights`, which the GPU
    backend runs. `heads` were trained on the target and are on its device."""
    heads_folder = own_heads(target.name)

    @cache
    def load_own_heads() -> TorchHeads:
        assert heads_folder is not None
        return heads_for(target, heads_folder, *load_heads(heads_folder))

    return LoadedModel(
        target,
        _forward(target, settings.cache_tokens, gate, weights),
        None if draft is None else Draft(draft, TorchForward(draft.network, settings.cache_tokens)),
        heads,
        own_draft_loader(target, settings.cache_tokens),
        None if heads_folder is None else OwnHeads(heads_k(heads_folder), load_own_heads),
    )


def _forward(target: Checkpoint, cache_tokens: int, gate: TensorGate | None, weights: Weights | None) -> Forward:
    if weights is None:
        assert gate is None or isinstance(gate, TorchGate), "torch's layers need a gate that is attached to them"
        return TorchForward(target.network, cache_tokens, gate)
    from stridelm.backends.gpu.forward import GpuForward

    return GpuForward(target.network, weights, cache_tokens, gate)
