"""Packed matrices and vectors: one memory-mapped file, and a JSON file with the offset of each of them.

    ~/.cache/stridelm/models/packed/<key>/weights.bin, packed.json, tokenizer.json, ...

Damage is found before a kernel reads a byte: all offsets are checked against the file's size.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from stridelm.backends.native.huge_pages import read_mapped
from stridelm.backends.native.library import Matrix
from stridelm.backends.native.quantised_matrix import Groups, pack_panels, packed_bytes, rows_of
from stridelm.models.builtin import cache_folder
from stridelm.params import InputError

VERSION = 6
"""Increased when the stored format changes, so that models packed by an older version are packed again."""
ENTRIES, WEIGHTS = "packed.json", "weights.bin"
_ALIGNMENT = 4096
_PANELS = 128
"""Panels that are put together at a time: that takes several times their size."""


def drift_key(activations: str, cache_numbers: str) -> str:
    """Under which name the drift of this kind of activations and KV cache is kept in a packed file's notes."""
    return activations if cache_numbers == "float16" else f"{activations}, {cache_numbers} cache"


class Writer:
    """Writes matrices and vectors to a packed file."""

    def __init__(self, file: BinaryIO, lanes: int) -> None:
        self._file = file
        self.lanes = lanes
        self.entries: dict[str, dict[str, int]] = {}

    def matrix(self, name: str, groups: Groups) -> None:
        panels, count = -(-groups.outputs // self.lanes), groups.numbers_OGX.shape[1]
        self._begin(name, {"panels": panels, "groups": count, "kind": groups.kind, "outputs": groups.outputs})
        piece = _PANELS * self.lanes
        for start in range(0, groups.outputs, piece):
            self._file.write(pack_panels(rows_of(groups, slice(start, start + piece)), self.lanes).data)

    def vector(self, name: str, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values, dtype=np.float32)
        self._begin(name, {"values": values.size})
        self._file.write(values.data)

    def _begin(self, name: str, place: dict[str, int]) -> None:
        self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        self.entries[name] = {"offset": self._file.tell(), **place}


def packed_folder(identity: tuple[object, ...]) -> Path:
    """The folder of a packed model or adapter, whether it exists yet or not. `identity`: all that its content depends
    on."""
    key = hashlib.sha256(repr((VERSION, *identity)).encode()).hexdigest()[:20]
    return cache_folder() / "packed" / key


def write(
    folder: Path,
    lanes: int,
    fill: Callable[[Writer, Path], dict[str, Any]],
    finish: Callable[[Path], None] = lambda working: None,
) -> None:
    """Make a packed folder. `fill` writes its content and returns further entries for the JSON file; `finish` may add
    to these once the folder can be read. Other processes see the whole folder or none."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        working = Path(tempfile.mkdtemp(prefix=".working-", dir=folder.parent))
        try:
            with (working / WEIGHTS).open("wb") as file:
                writer = Writer(file, lanes)
                notes = fill(writer, working)
            content = {"version": VERSION, "lanes": lanes, "entries": writer.entries, **notes}
            (working / ENTRIES).write_text(json.dumps(content))
            finish(working)
            if folder.exists():  # damaged: the caller holds the lock and could not read it
                shutil.rmtree(folder, ignore_errors=True)
            os.replace(working, folder)
        finally:
            shutil.rmtree(working, ignore_errors=True)
    except OSError as error:
        raise InputError(_cannot_store(folder, error)) from error


@dataclass(frozen=True, slots=True)
class Packed:
    """A memory-mapped packed file. Matrices and vectors point into it."""

    notes: dict[str, Any]
    """The content of the JSON file."""
    memory: np.ndarray

    def outputs(self, name: str) -> int:
        return self.notes["entries"][name]["outputs"]

    def has(self, name: str) -> bool:
        return name in self.notes["entries"]

    def kind(self, name: str) -> int:
        return self.notes["entries"][name]["kind"]

    def matrix(self, name: str) -> Matrix:
        place = self.notes["entries"][name]
        return Matrix(self.memory.ctypes.data + place["offset"], place["panels"], place["groups"], place["kind"])

    def vector(self, name: str) -> np.ndarray:
        place = self.notes["entries"][name]
        return self.memory[place["offset"] : place["offset"] + 4 * place["values"]].view(np.float32)


@contextmanager
def packing_lock(folder: Path) -> Iterator[None]:
    """Lets one process pack at a time: a second one waits, and then finds what the first has packed."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = (folder.parent / f"{folder.name}.lock").open("w")
    except OSError as error:
        raise InputError(_cannot_store(folder, error)) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _cannot_store(folder: Path, error: OSError) -> str:
    return (
        f"{folder.parent}: packed weights cannot be stored there ({error.strerror or error}): make room, set "
        "XDG_CACHE_HOME to another folder, or use --backend torch"
    )


def read(folder: Path, lanes: int) -> Packed | None:
    """A packed folder; None if it does not exist or is damaged."""
    try:
        notes = json.loads((folder / ENTRIES).read_text())
        with (folder / WEIGHTS).open("rb") as file:
            memory = read_mapped(file)
        if notes["version"] != VERSION or notes["lanes"] != lanes:
            return None
        whole = all(_end(place, lanes) <= len(memory) for place in notes["entries"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Packed(notes, memory) if whole else None


def read_or_pack(folder: Path, lanes: int, pack: Callable[[], None]) -> Packed:
    """Read a packed folder. If there is none, one process makes it with `pack` while others wait."""
    found = read(folder, lanes)
    if found is None:
        with packing_lock(folder):
            found = read(folder, lanes)
            if found is None:
                pack()
                found = read(folder, lanes)
        assert found is not None, "it was written a moment ago"
    return found


def file_identity(file: Path) -> tuple[str, int, int]:
    """Name, size and time. Not a hash: reading a file of weights would take longer than loading the packed one."""
    status = file.stat()
    return file.name, status.st_size, status.st_mtime_ns


def _end(place: dict[str, int], lanes: int) -> int:
    """The offset of the first byte after a matrix or vector."""
    if any(not isinstance(value, int) or value < 0 for value in place.values()):
        raise ValueError("an entry that is not a whole number of at least 0")
    if "values" in place:
        return place["offset"] + 4 * place["values"]
    size = packed_bytes(place["kind"], place["panels"], place["groups"], lanes)
    if place["outputs"] > place["panels"] * lanes:
        raise ValueError("more outputs than panels")
    return place["offset"] + size
