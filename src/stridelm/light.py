"""Installations without torch and transformers (`stridelm-light`): they run what the native backend runs, and refuse
all else in one sentence."""

from importlib.util import find_spec

from stridelm.params import InputError

LEFT_OUT = ("torch", "transformers")


def is_light() -> bool:
    return any(find_spec(name) is None for name in LEFT_OUT)


def needs_torch(what: str) -> InputError:
    """`what`: the subject of the sentence."""
    return InputError(
        f"{what} needs torch and transformers, which are not installed here: pip install 'stridelm-light[torch]' adds "
        "them. Without them the built-in model runs, and .gguf files"
    )
