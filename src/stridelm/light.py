"""How this package was installed. Installations without torch and transformers (`stridelm-light`) run what the native
backend runs, and refuse all else in one sentence."""

from importlib.util import find_spec
from pathlib import Path

from stridelm.params import InputError

LEFT_OUT = ("torch", "transformers")


def is_light() -> bool:
    return any(find_spec(name) is None for name in LEFT_OUT)


def install_command(extra: str, checkout: Path = Path(__file__).parents[2]) -> str:
    """What to type for what an extra brings. `checkout`: where this package's sources lie, if it is run from these."""
    if (checkout / "pyproject.toml").exists():
        return f"pip install -e '{checkout}[{extra}]'"
    return f"pip install '{'stridelm-light' if is_light() else 'stridelm'}[{extra}]'"


def needs_torch(what: str) -> InputError:
    """`what`: the subject of the sentence."""
    return InputError(
        f"{what} needs torch and transformers, which are not installed here: pip install 'stridelm-light[torch]' adds "
        "them. Without them the built-in model runs, and .gguf files"
    )
