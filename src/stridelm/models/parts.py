"""The parts that training adds to a base model, on disk: safetensors shards, and a JSON file that is written last.

Adapters, heads and draft layers are folders of this form. The JSON file has the format's name and version; its other
entries are the fields of a dataclass.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from safetensors import SafetensorError

from stridelm.params import InputError

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 15_000_000
"""Maximum size of a shard: small enough for any code host and mail gateway."""

Read = Callable[[list[Path]], dict[str, Any]]
"""Reads the tensors of files: torch's (`store.read_weights`) or numpy arrays (`weight_arrays.read_arrays`)."""
Shapes = Mapping[str, tuple[int | None, ...]]
"""Tensor's name -> its shape, with None for dimensions of any size."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of folder."""

    noun: str
    """Its name in messages, as in `copy the adapter again`, and the beginning of its shards' file names."""
    file: str
    """The JSON file."""
    format: str
    version: int = 1


def save_part(folder: Path, kind: Kind, config: Any, tensors: "Mapping[str, torch.Tensor]") -> None:
    """Write tensors in bfloat16 to a folder. The JSON file is written last: without it the folder is not valid."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, torch.Tensor]] = [{}]
    room = SHARD_BYTES
    for name, tensor in tensors.items():
        stored = tensor.detach().to("cpu", torch.bfloat16).contiguous()
        if stored.nbytes > room and shards[-1]:
            shards.append({})
            room = SHARD_BYTES
        shards[-1][name] = stored
        room -= stored.nbytes
    names = [f"{kind.noun}-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    entry = {"format": kind.format, "version": kind.version, **asdict(config), "shards": names}
    # Everything is first written to a separate folder: if the disk is full, existing files do not change.
    working = folder / ".writing"
    shutil.rmtree(working, ignore_errors=True)  # left by a run that was killed here
    working.mkdir()
    try:
        for name, shard in zip(names, shards, strict=True):
            try:
                save_file(shard, working / name, metadata={"format": kind.format, "version": str(kind.version)})
            except SafetensorError as error:
                raise OSError(28, "No space left on device, or it cannot be written", str(folder / name)) from error
        (working / kind.file).write_text(json.dumps(entry, indent=2) + "\n")
        for name in (*names, kind.file):
            os.replace(working / name, folder / name)
            (folder / name).chmod(0o644)
    finally:
        shutil.rmtree(working, ignore_errors=True)


Config = TypeVar("Config")


def load_part(
    folder: Path, kinds: tuple[Kind, ...], config_class: type[Config], read: Read
) -> tuple[Kind, Config, dict[str, Any]]:
    """Read a folder of one of these kinds, which have the same name for their JSON file."""
    file = folder / kinds[0].file
    noun = kinds[0].noun
    try:
        entry: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        found = entry["format"], entry["version"]
        kind = next((kind for kind in kinds if found == (kind.format, kind.version)), None)
        if kind is None:
            raise InputError(
                f"{file}: is of format {found[0]} version {found[1]}, but this version of StrideLM reads "
                f"{kinds[0].format} version {kinds[0].version}"
            )
        known: dict[str, Any] = {
            field.name: entry[field.name]
            for field in fields(config_class)  # type: ignore[arg-type]
            if field.name in entry or field.default is MISSING  # an earlier version has fewer
        }
        known = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
        config = config_class(**known)
        shards = [folder / name for name in entry["shards"]]
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file}: cannot be read ({type(error).__name__}: {error}): copy the {noun} again") from error
    if any(Path(name).name != name for name in entry["shards"]):
        raise InputError(f"{file}: names a shard outside its folder: do not use it")
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise InputError(f"{folder}: {missing[0]} is missing: copy the {noun} again")
    return kind, config, read(shards)


def check_tensors(folder: Path, kind: Kind, tensors: Mapping[str, Any], expected: Shapes) -> None:
    """Check that the tensors are exactly those expected, with these shapes, and finite."""
    file = folder / kind.file
    if expected.keys() != tensors.keys():
        wrong = sorted(expected.keys() ^ tensors.keys())[0]
        raise InputError(f"{file}: the tensor {wrong} is missing or one too many: copy the {kind.noun} again")
    for name, shape in expected.items():
        actual = tensors[name].shape
        fits = len(shape) == len(actual) and all(want in (None, is_) for want, is_ in zip(shape, actual, strict=True))
        if not fits:
            raise InputError(f"{file}: the tensor {name} is of shape {tuple(actual)}: copy the {kind.noun} again")
        if not _is_finite(tensors[name]):
            raise InputError(f"{file}: the tensor {name} is not finite: the {kind.noun} is damaged")


def _is_finite(tensor: Any) -> bool:
    return bool((np.isfinite(tensor) if isinstance(tensor, np.ndarray) else tensor.isfinite()).all())


def check_base(folder: Path, kind: Kind, trained_on: tuple[str, str], base: tuple[str, str], remedy: str) -> None:
    """Refuse a part that was trained on other weights than those of `base`. Both are (name, fingerprint)."""
    if trained_on[1] != base[1]:
        raise InputError(
            f"{folder}: holds the {kind.noun} of {trained_on[0]} (fingerprint {trained_on[1][:12]}), but {base[0]} has "
            f"other weights ({base[1][:12]}): {remedy}"
        )
