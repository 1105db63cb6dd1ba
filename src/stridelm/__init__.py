"""StrideLM: several tokens per forward pass, the same text."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stridelm.api import Answer, LanguageModel, load
    from stridelm.params import InputError, SamplingParams
    from stridelm.settings import DecodeSettings, LoadSettings
    from stridelm.types import Result, Stride

__version__ = "0.2.0"
__all__ = [
    "Answer",
    "DecodeSettings",
    "InputError",
    "LanguageModel",
    "LoadSettings",
    "Result",
    "SamplingParams",
    "Stride",
    "load",
]

_HOMES = {
    "api": ("Answer", "LanguageModel", "load"),
    "params": ("InputError", "SamplingParams"),
    "settings": ("DecodeSettings", "LoadSettings"),
    "types": ("Result", "Stride"),
}


def __getattr__(name: str) -> Any:
    """Names are looked up on first use, so that `import stridelm` does not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'stridelm' has no attribute {name!r}")
    home = next(module for module, names in _HOMES.items() if name in names)
    return getattr(import_module(f"stridelm.{home}"), name)
