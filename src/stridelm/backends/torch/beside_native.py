"""Prediction heads and draft models that run on torch, for a target that runs on the native backend."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.backends.torch.draft_layers import is_draft, load_draft
from stridelm.backends.torch.draft_source import check_same_vocabulary
from stridelm.backends.torch.forward import TorchForward
from stridelm.backends.torch.heads import TorchHeads, check_heads, load_heads
from stridelm.models.target import Draft, Target
from stridelm.settings import LoadSettings


class HeadsOnNumpy:
    """Implements `contracts.Heads`, with numpy arrays."""

    def __init__(self, module: TorchHeads) -> None:
        self._module = module
        self.k = module.k

    @torch.inference_mode()
    def __call__(self, hidden_XC: np.ndarray) -> np.ndarray:
        return self._module(torch.from_numpy(np.ascontiguousarray(hidden_XC))).numpy()


def load_numpy_heads(folder: Path, target: Target) -> HeadsOnNumpy:
    config, module = load_heads(folder)
    check_heads(target, folder, config)
    return HeadsOnNumpy(module)


def load_torch_draft(name: str, target: Target, settings: LoadSettings) -> Draft:
    """Load a draft model: a whole model, or first layers. The latter use the target's embedding and output matrix, so
    the target's weights are loaded once more, in float32."""
    settings = replace(settings, backend="torch", quantize=None)
    if is_draft(Path(name)):
        draft = load_draft(Path(name), _base(target.name, settings))
    else:
        draft = load_checkpoint(name, settings)
        check_same_vocabulary(target, draft)
    return Draft(draft, TorchForward(draft.network, settings.cache_tokens))


@cache
def _base(name: str, settings: LoadSettings) -> Checkpoint:
    return load_checkpoint(name, settings)
