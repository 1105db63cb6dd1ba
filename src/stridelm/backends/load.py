"""Chooses the backend of a model: the native one (C++ kernels on a CPU) if it supports the model, otherwise torch or
the GPU kernels."""

import logging
from dataclasses import replace
from functools import cache
from pathlib import Path

from stridelm.backends.common.compiler import CannotCompile
from stridelm.backends.native.model_source import DoesNotFit
from stridelm.contracts import Heads
from stridelm.light import is_light, needs_torch
from stridelm.models.preview import heads_k, own_draft, own_heads
from stridelm.models.target import Draft, LoadedModel, OwnHeads
from stridelm.params import InputError
from stridelm.settings import ACTIVATIONS, AUTO_DTYPE, KV_CACHES, LoadSettings, ModelChoice

log = logging.getLogger("stridelm")

_OWN_DTYPES = (AUTO_DTYPE, "float32")
"""The values of --dtype that allow the native backend, which has its own number format."""


def load_model(choice: ModelChoice) -> LoadedModel:
    settings = choice.settings
    is_asked_for = settings.backend == "native" or settings.quantize is not None
    if is_asked_for:
        _check_place(settings)
    if is_asked_for or (settings.backend == "auto" and _may_be_native(settings)):
        from stridelm.backends.native import load as native

        try:
            return _with_torch_drafters(native.load_model(choice), choice)
        except (DoesNotFit, CannotCompile) as error:
            if is_asked_for:
                raise InputError(f"{choice.model}: the native backend {_reason(error)}") from error
            if is_light():
                raise needs_torch(
                    f"{choice.model}: the native backend {_reason(error)}; running it otherwise"
                ) from error
            if isinstance(error, CannotCompile):
                log.warning("the native backend %s: torch serves, which is slower", _reason(error))
    if settings.activations != ACTIVATIONS[0]:
        raise InputError("activations are a matter of the native backend, which does not run this: leave them out")
    if settings.kv_cache != KV_CACHES[0]:
        raise InputError("kv_cache is a matter of the native backend, which does not run this: leave it out")
    if is_light():
        raise needs_torch(f"{choice.model}: running it on torch or a GPU")
    # Imported here, because importing torch takes two seconds.
    from stridelm.backends import network

    return network.load_model(choice)


def _with_torch_drafters(loaded: LoadedModel, choice: ModelChoice) -> LoadedModel:
    """Add the drafters that torch runs for a model of the native backend. Torch is imported only if one is used."""
    target = loaded.target

    def load_draft(name: str | Path) -> Draft:
        if is_light():
            raise needs_torch("drafting with a second model")
        from stridelm.backends.torch.beside_native import load_torch_draft

        return load_torch_draft(str(name), target, choice.settings)

    def load_heads(folder: str | Path) -> Heads:
        if is_light():
            raise needs_torch("drafting with prediction heads")
        from stridelm.backends.torch.beside_native import load_numpy_heads

        return load_numpy_heads(Path(folder), target)

    own_draft_folder = own_draft(target.name)
    heads_folder = own_heads(target.name)
    return replace(
        loaded,
        draft=None if choice.draft_model is None else load_draft(choice.draft_model),
        heads=None if choice.heads is None else load_heads(choice.heads),
        own_draft=None if own_draft_folder is None else cache(lambda: load_draft(own_draft_folder)),
        own_heads=None
        if heads_folder is None
        else OwnHeads(heads_k(heads_folder), cache(lambda: load_heads(heads_folder))),
    )


def _reason(error: Exception) -> str:
    return f"cannot be used ({error})" if isinstance(error, CannotCompile) else str(error)


def _check_place(settings: LoadSettings) -> None:
    if settings.device not in ("auto", "cpu"):
        raise InputError(f"the native backend runs on a CPU, not on {settings.device}: leave out --device")
    if settings.dtype not in _OWN_DTYPES:
        raise InputError(f"the native backend has no dtype {settings.dtype}: leave out --dtype")


def _may_be_native(settings: LoadSettings) -> bool:
    """Decided by the settings, and by whether there is a GPU that would be used instead. Device files are checked,
    because asking torch would take two seconds."""
    has_gpu = any(Path(place).exists() for place in ("/dev/nvidia0", "/dev/kfd"))
    return settings.dtype in _OWN_DTYPES and (settings.device == "cpu" or (settings.device == "auto" and not has_gpu))
