"""Models and their conversions as plain Hugging Face folders, which other engines read.

In all functions `base` is a checkpoint from `load_base`: with transformers' own layers, on the CPU.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from stridelm.backends.torch.checkpoint import Checkpoint, load_checkpoint
from stridelm.export.mask_vocabulary import add_mask_tokens
from stridelm.models.adapter import Adapter, check_base, load_adapter, save_adapter
from stridelm.models.find import folder_of
from stridelm.models.folder_settings import read_generation_config
from stridelm.models.store import save_smallest
from stridelm.models.ungated import merge
from stridelm.params import InputError
from stridelm.settings import LoadSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CUSTOM_GENERATE = "custom_generate"
"""The folder name is given by transformers: `generate(custom_generate=...)` looks for generate.py there."""


def load_base(name: str) -> Checkpoint:
    """Load a model for export, with its own generation config."""
    base = load_checkpoint(name, LoadSettings(device="cpu"), trainable=True)
    folder = folder_of(name)
    own = None if folder is None else read_generation_config(folder)
    if own is not None:
        base.network.generation_config = own
    return base


def load_adapter_of(base: Checkpoint, folder: Path) -> Adapter:
    """Load an adapter, and check that it was trained on this base."""
    adapter = load_adapter(folder)
    check_base(folder, adapter, base.name, base.fingerprint)
    return adapter


def write_plain(base: Checkpoint, folder: Path) -> torch.dtype:
    """Write the model as it is. Like the other `write_` functions it creates the folder and returns the dtype of the
    weights there."""
    return save_smallest(folder, base.network, base.tokenizer, base.eos_ids)


def write_converted(base: Checkpoint, adapter: Adapter, folder: Path) -> torch.dtype:
    """Write the model as it is, together with a gated adapter and the script that decodes with it in transformers."""
    assert adapter.is_gated
    dtype = write_plain(base, folder)
    add_custom_generate(folder)
    save_adapter(folder / CUSTOM_GENERATE, adapter)
    return dtype


def write_merged(base: Checkpoint, adapter: Adapter, folder: Path) -> torch.dtype:
    """Write the model with an adapter without a gate merged into its weights, and its masks as tokens of the
    vocabulary, which config.json names. The base's network in memory is changed in the same way."""
    assert not adapter.is_gated
    merge(base.network, adapter)
    add_mask_tokens(base.network, base.tokenizer, adapter.mask_embedding)
    return write_plain(base, folder)


def write_draft(base: Checkpoint, layers: "PreTrainedModel", folder: Path) -> torch.dtype:
    """Write a draft model, which `load_layers` made from the base's first layers, as a model that stands alone."""
    return save_smallest(folder, layers, base.tokenizer, base.eos_ids)


def add_custom_generate(folder: Path) -> None:
    """Add the script with which transformers decodes several tokens per step. It works for a model whose config names
    its masks, or that has an adapter in the script's folder."""
    source = Path(__file__).parent / CUSTOM_GENERATE
    target = folder / CUSTOM_GENERATE
    target.mkdir()
    for name in ("generate.py", "README.md"):
        shutil.copyfile(source / name, target / name)


@contextmanager
def made_whole(out: Path) -> Iterator[Path]:
    """A temporary path beside `out` to write a file or folder to. It is renamed to `out` at the end, or removed after
    an error. Read all inputs before: every OSError inside is reported as a failure to write."""
    working = out.with_name(f".{out.name}.writing")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove(working)  # left over from a run that was killed
        yield working
        working.rename(out)
    except OSError as error:
        raise InputError(
            f"{out}: cannot be written ({error.strerror or error}): make room, or name another place"
        ) from error
    finally:
        _remove(working)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
