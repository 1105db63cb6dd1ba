"""StrideLM: several tokens per forward pass, the same text."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stridelm.api import Answer, LanguageModel, load
    from stridelm.settings import LoadSettings
    from stridelm.types import InputError, Result, SamplingParams, Stride

__version__ = "0.1.0"
__all__ = ["Answer", "InputError", "LanguageModel", "LoadSettings", "Result", "SamplingParams", "Stride", "load"]

_HOMES = {"Answer": "api", "LanguageModel": "api", "load": "api", "LoadSettings": "settings"}


def __getattr__(name: str) -> Any:
    """Names are looked up on first use, so that `import stridelm` does not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'stridelm' has no attribute {name!r}")
    return getattr(import_module(f"stridelm.{_HOMES.get(name, 'types')}"), name)
