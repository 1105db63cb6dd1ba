"""Files that are whole or not there: written beside their place, then renamed into it."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from stridelm.params import InputError


def write_json(file: Path, content: Any) -> None:
    write_bytes(file, f"{json.dumps(content, indent=2)}\n".encode())


def write_json_lines(file: Path, entries: list[Any]) -> None:
    write_bytes(file, "".join(f"{json.dumps(entry)}\n" for entry in entries).encode())


def write_bytes(file: Path, content: bytes) -> None:
    with _whole(file) as working:
        working.write_bytes(content)


def write_tensors(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    with _whole(file) as working:
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, working)
        except SafetensorError as error:
            raise OSError(errno.ENOSPC, f"no room, or not writable ({error})") from error
        working.chmod(0o644)


@contextmanager
def _whole(file: Path) -> Iterator[Path]:
    """Where to write a file. What was written is on the disk before it gets its name; what fails leaves nothing."""
    working = file.with_name(f".{file.name}.writing")
    with naming(file):
        try:
            yield working
            with working.open("rb+") as written:
                os.fsync(written.fileno())
            os.replace(working, file)
        except OSError:
            working.unlink(missing_ok=True)
            raise


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Errors tell which file it was: those of writing do not by themselves."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error


def read_json(file: Path, remedy: str) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not an object")
    except (OSError, ValueError) as error:
        raise _unreadable(file, error, remedy) from error
    return content


def read_json_lines(file: Path, remedy: str) -> list[Any]:
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise _unreadable(file, error, remedy) from error


def read_tensors(file: Path, remedy: str) -> dict[str, torch.Tensor]:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise _unreadable(file, error, remedy) from error


def _unreadable(file: Path, error: Exception, remedy: str) -> InputError:
    return InputError(f"{file}: cannot be read ({error}): {remedy}")


_SPOKEN = {"fingerprint": "the model's weights", "prompts_sha256": "the prompts", "prompts_given": "the prompts"}
"""What a digest or a count stands for."""


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What a record of settings says otherwise than it would say now, for a message: its own values in brackets."""
    apart: list[str] = []
    for name, value in now.items():
        held = before.get(name)
        if isinstance(value, dict):
            apart += differences(held if isinstance(held, dict) else {}, value)
        elif held != value:
            apart.append(_SPOKEN.get(name) or f"{name} ({held})")
    return list(dict.fromkeys(apart))
