"""How GGUF files are refused."""

from pathlib import Path

import pytest

from gguf_models import load
from stridelm.params import InputError


def refusal(path: Path) -> str:
    """The message of the refusal; it names the file and says what to do."""
    with pytest.raises(InputError) as refused:
        load(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert "fetch" in message or "use" in message
    assert "\n" not in message
    return message


def refused_without_much_memory(path: Path) -> str:
    with pytest.raises(InputError) as refused:
        load(path)
    assert_frugal(refused.value)
    return str(refused.value)


def assert_frugal(error: InputError) -> None:
    assert not isinstance(error.__cause__, MemoryError)
    assert "allocate" not in str(error)
