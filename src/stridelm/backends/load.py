"""Which backend runs a model: the kernels where they fit, torch everywhere else."""

import logging
from dataclasses import replace
from functools import cache
from pathlib import Path

from stridelm.backends.common.compiler import CannotCompile
from stridelm.backends.native.model_source import DoesNotFit
from stridelm.contracts import Heads
from stridelm.models import builtin
from stridelm.models.preview import own_draft
from stridelm.models.target import Draft, LoadedModel
from stridelm.params import InputError
from stridelm.settings import AUTO_DTYPE, LoadSettings, ModelChoice

log = logging.getLogger("stridelm")

_OWN_DTYPES = (AUTO_DTYPE, "float32")
"""The native backend's: it has a kind of numbers of its own."""


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
            if isinstance(error, CannotCompile):
                log.warning("the native backend %s: torch serves, which is slower", _reason(error))
    if settings.activations != "int16":
        raise InputError("activations are a matter of the native backend, which does not run this: leave them out")
    # Here, not above: torch takes two seconds to import.
    from stridelm.backends import network

    return network.load_model(choice)


def _with_torch_drafters(loaded: LoadedModel, choice: ModelChoice) -> LoadedModel:
    """What torch runs beside a model of the native backend: it is imported only if one of them is asked for."""
    target = loaded.target

    def load_draft(name: str | Path) -> Draft:
        from stridelm.backends.torch.beside_native import load_torch_draft

        return load_torch_draft(str(name), target, choice.settings)

    def load_heads(folder: str | Path) -> Heads:
        from stridelm.backends.torch.beside_native import load_numpy_heads

        return load_numpy_heads(Path(folder), target)

    own_draft_folder = own_draft(target.name)
    own_heads_folder = builtin.builtin_heads() if target.name == builtin.NAME else None
    return replace(
        loaded,
        draft=None if choice.draft_model is None else load_draft(choice.draft_model),
        heads=None if choice.heads is None else load_heads(choice.heads),
        own_draft=None if own_draft_folder is None else cache(lambda: load_draft(own_draft_folder)),
        own_heads=None if own_heads_folder is None else cache(lambda: load_heads(own_heads_folder)),
    )


def _reason(error: Exception) -> str:
    return f"cannot be used ({error})" if isinstance(error, CannotCompile) else str(error)


def _check_place(settings: LoadSettings) -> None:
    if settings.device not in ("auto", "cpu"):
        raise InputError(f"the native backend runs on a CPU, not on {settings.device}: leave out --device")
    if settings.dtype not in _OWN_DTYPES:
        raise InputError(f"the native backend has no dtype {settings.dtype}: leave out --dtype")


def _may_be_native(settings: LoadSettings) -> bool:
    """By what is asked for, and whether there is a GPU that would be taken: asking torch would take two seconds."""
    has_gpu = any(Path(place).exists() for place in ("/dev/nvidia0", "/dev/kfd"))
    return settings.dtype in _OWN_DTYPES and (settings.device == "cpu" or (settings.device == "auto" and not has_gpu))
