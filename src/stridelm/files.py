"""Atomic file writes: to a temporary file beside the target, then renamed. Nothing here imports torch."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stridelm.params import InputError


def write_json(file: Path, content: Any) -> None:
    write_bytes(file, f"{json.dumps(content, indent=2)}\n".encode())


def write_json_lines(file: Path, entries: list[Any]) -> None:
    write_bytes(file, "".join(f"{json.dumps(entry)}\n" for entry in entries).encode())


def write_bytes(file: Path, content: bytes) -> None:
    with whole(file) as working:
        working.write_bytes(content)


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """A temporary path to write a file to. It is synced to disk before it is renamed; a failure leaves nothing."""
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
    """Adds the file's name to OSErrors: those of writing do not have it."""
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
        raise unreadable(file, error, remedy) from error
    return content


def read_json_lines(file: Path, remedy: str) -> list[Any]:
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise unreadable(file, error, remedy) from error


def unreadable(file: Path, error: Exception, remedy: str) -> InputError:
    return InputError(f"{file}: cannot be read ({error}): {remedy}")
