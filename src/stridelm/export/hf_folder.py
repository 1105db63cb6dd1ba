"""Models and their conversions as plain Hugging Face folders, which other engines read.

`base` is everywhere a checkpoint that was loaded as `load_base` loads it: transformers' own layers, on the CPU.
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
"""The folder's name is transformers': `generate(custom_generate=...)` looks for generate.py there."""


def load_base(name: str) -> Checkpoint:
    """A model to be written, with its own settings for generating."""
    base = load_checkpoint(name, LoadSettings(device="cpu"), trainable=True)
    folder = folder_of(name)
    own = None if folder is None else read_generation_config(folder)
    if own is not None:
        base.network.generation_config = own
    return base


def load_adapter_of(base: Checkpoint, folder: Path) -> Adapter:
    """An adapter that was trained on this base."""
    adapter = load_adapter(folder)
    check_base(folder, adapter, base.name, base.fingerprint)
    return adapter


def write_plain(base: Checkpoint, folder: Path) -> torch.dtype:
    """The model as it is. This and the others make the folder, and return the type that the weights have there."""
    return save_smallest(folder, base.network, base.tokenizer, base.eos_ids)


def write_converted(base: Checkpoint, adapter: Adapter, folder: Path) -> torch.dtype:
    """The model as it is; beside it a gated adapter and the script that decodes with it in transformers."""
    assert adapter.is_gated
    dtype = write_plain(base, folder)
    add_custom_generate(folder)
    save_adapter(folder / CUSTOM_GENERATE, adapter)
    return dtype


def write_merged(base: Checkpoint, adapter: Adapter, folder: Path) -> torch.dtype:
    """The model with an adapter without a gate merged into its weights, and its masks as tokens of the vocabulary,
    which config.json names. The base's network in memory becomes that model, too."""
    assert not adapter.is_gated
    merge(base.network, adapter)
    add_mask_tokens(base.network, base.tokenizer, adapter.mask_embedding)
    return write_plain(base, folder)


def write_draft(base: Checkpoint, layers: "PreTrainedModel", folder: Path) -> torch.dtype:
    """A draft model, which `load_layers` made of the base's first layers, as a model that stands alone."""
    return save_smallest(folder, layers, base.tokenizer, base.eos_ids)


def add_custom_generate(folder: Path) -> None:
    """The script by which transformers decodes several tokens per step, for a model whose config names its masks or
    that has an adapter beside the script."""
    source = Path(__file__).parent / CUSTOM_GENERATE
    target = folder / CUSTOM_GENERATE
    target.mkdir()
    for name in ("generate.py", "README.md"):
        shutil.copyfile(source / name, target / name)


@contextmanager
def made_whole(out: Path) -> Iterator[Path]:
    """A place beside `out` for the file or folder to be written, which takes its place at the end, or goes again. What
    is read for it is read before: every OSError in here is taken for one of writing."""
    working = out.with_name(f".{out.name}.writing")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove(working)  # of a run that was killed here
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
