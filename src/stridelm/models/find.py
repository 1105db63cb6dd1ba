"""Finds a model by name, folder, hub id or GGUF file, and reads its settings, weights and tokenizer."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from stridelm.models import builtin
from stridelm.models.support import check_config
from stridelm.params import InputError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

    from stridelm.models.stored import StoredModel


def read_model(name: str, choose_dtype: "Callable[[PreTrainedConfig], torch.dtype]") -> "StoredModel":
    """Read everything that is stored of the model with this name. `choose_dtype`: what the weights of a GGUF file are
    converted to; those of a folder stay as they are."""
    from stridelm.models.gguf import read_gguf

    folder = folder_of(name)
    return read_gguf(Path(name), choose_dtype) if folder is None else read_folder(folder)


def folder_of(name: str) -> Path | None:
    """The Hugging Face folder of the model with this name, downloaded if necessary; None if it is a GGUF file."""
    path = Path(name)
    if name == builtin.NAME:
        return builtin.ensure_builtin()
    if name and path.is_dir():
        return path
    check_name(name)
    return None if path.suffix == ".gguf" else from_hub(name)


def read_folder(folder: Path) -> "StoredModel":
    from stridelm.models.fingerprint import fingerprint
    from stridelm.models.folder_settings import read_config, read_eos_ids, read_tokenizer
    from stridelm.models.store import read_weights, weight_files
    from stridelm.models.stored import StoredModel

    if not (folder / "config.json").is_file():
        raise InputError(f"{folder}: no config.json there, so it is not a Hugging Face model folder")
    files = weight_files(folder)
    config = read_config(folder)
    check_config(config)  # first, because a model of another kind may have no tokenizer
    tokenizer = read_tokenizer(folder)
    eos_ids, weights = read_eos_ids(folder, config, tokenizer), read_weights(files)
    largest = max(weights.values(), key=lambda weight: weight.numel())
    return StoredModel(config, weights, tokenizer, eos_ids, fingerprint(weights), largest.dtype)


def check_name(name: str) -> None:
    """Refuse what can be no model: a missing file, or a name that no hub has. Nothing is fetched."""
    path = Path(name)
    if path.suffix == ".gguf" and not path.is_file():
        raise InputError(f"{path}: no such file")
    is_on_hub = name.count("/") == 1 and not name.startswith((".", "/", "~")) and os.sep * 2 not in name
    if name != builtin.NAME and not path.exists() and not is_on_hub:
        raise InputError(_unknown(name))


def _unknown(name: str) -> str:
    return (
        f"there is no model {name!r}: --model takes {builtin.NAME} (built in), a Hugging Face folder, a .gguf file or "
        "a hub id such as Qwen/Qwen3-0.6B; `stridelm models` lists what is on this machine"
    )


def from_hub(name: str) -> Path:
    check_name(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]))
    except LocalEntryNotFoundError as error:
        raise InputError(
            f"{name!r} is not on this machine and the hub cannot be reached (no network, or HF_HUB_OFFLINE is set): "
            "fetch it elsewhere and give its folder"
        ) from error
    # A proxy, a broken connection, an unknown name: each library that the hub's client uses has its own errors.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{_unknown(name)} (the hub said: {reason})") from error
