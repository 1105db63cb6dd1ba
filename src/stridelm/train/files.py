"""Files of tensors, written atomically."""

import errno
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from stridelm.files import unreadable, whole


def write_tensors(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    with whole(file) as working:
        try:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, working)
        except SafetensorError as error:
            raise OSError(errno.ENOSPC, f"no room, or not writable ({error})") from error
        working.chmod(0o644)


def read_tensors(file: Path, remedy: str) -> dict[str, torch.Tensor]:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise unreadable(file, error, remedy) from error
