"""Which models are on this machine. Does not import torch, so that `stridelm models` answers at once."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants

from stridelm.models import builtin


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine, or the built-in one before its first use."""

    name: str
    path: Path
    bytes: int
    is_here: bool


def local_models() -> Iterator[LocalModel]:
    """The built-in model, then what the Hugging Face cache holds."""
    places = (builtin.builtin_folder(), builtin.cache_folder() / builtin.GGUF_FOLDER)
    folder = next((place for place in places if place.is_dir()), places[0])
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    yield LocalModel(builtin.NAME, folder, size, folder.is_dir())
    hub = Path(constants.HF_HUB_CACHE)
    for entry in sorted(hub.glob("models--*")):
        snapshots = sorted((entry / "snapshots").glob("*"), key=os.path.getmtime)
        if snapshots and any(snapshots[-1].glob("*.safetensors")):
            size = sum(file.stat().st_size for file in snapshots[-1].rglob("*") if file.is_file())
            yield LocalModel(entry.name.removeprefix("models--").replace("--", "/"), snapshots[-1], size, True)
