"""Files that are whole or not there: written beside their place, then renamed into it."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from stridelm.types import InputError

_ENOSPC = 28


def write_json(file: Path, content: Any) -> None:
    write_text(file, json.dumps(content, indent=2) + "\n")


def write_text(file: Path, text: str) -> None:
    working = file.with_name(f".{file.name}.writing")
    with working.open("w", encoding="utf-8") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    os.replace(working, file)


def write_tensors(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    working = file.with_name(f".{file.name}.writing")
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, working)
    except SafetensorError as error:
        working.unlink(missing_ok=True)
        raise OSError(_ENOSPC, "no room, or not writable", str(file)) from error
    working.chmod(0o644)
    os.replace(working, file)


def read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not an object")
        return content
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read ({error}): mend it, or start anew with another --out") from error


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file}: cannot be read ({error}): start anew with another --out") from error
