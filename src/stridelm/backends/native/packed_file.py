"""Packed matrices and vectors: one file that is memory-mapped, and a JSON file that says where each of them lies.

    ~/.cache/stridelm/models/packed/<key>/weights.bin, packed.json, tokenizer.json, ...

Whatever is wrong with them shows before a kernel reads a byte: no offset leads out of the file.
"""

import fcntl
import hashlib
import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from stridelm.backends.native.library import Matrix
from stridelm.backends.native.quantised_matrix import FOUR, GROUP, Groups, packed
from stridelm.models.builtin import cache_folder
from stridelm.params import InputError

VERSION = 3
"""Rises when what is stored changes, so that what an older version packed is packed anew."""
ENTRIES, WEIGHTS = "packed.json", "weights.bin"
_ALIGNMENT = 4096


class Writer:
    """Adds matrices and vectors to a file that becomes the packed one."""

    def __init__(self, file: BinaryIO, lanes: int) -> None:
        self._file = file
        self.lanes = lanes
        self.entries: dict[str, dict[str, int]] = {}

    def matrix(self, name: str, groups: Groups) -> None:
        panels = packed(groups, self.lanes)
        place = {"panels": panels.shape[0], "groups": panels.shape[1], "kind": groups.kind, "outputs": groups.outputs}
        self._add(name, panels, place)

    def vector(self, name: str, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values, dtype=np.float32)
        self._add(name, values, {"values": values.size})

    def _add(self, name: str, array: np.ndarray, place: dict[str, int]) -> None:
        self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        self.entries[name] = {"offset": self._file.tell(), **place}
        self._file.write(array.data)


def packed_folder(identity: tuple[object, ...]) -> Path:
    """Where what is packed from something is, or will be. `identity` tells all that it depends on."""
    key = hashlib.sha256(repr((VERSION, *identity)).encode()).hexdigest()[:20]
    return cache_folder() / "packed" / key


def write(
    folder: Path,
    lanes: int,
    fill: Callable[[Writer, Path], dict[str, Any]],
    finish: Callable[[Path], None] = lambda working: None,
) -> None:
    """Make a packed folder. `fill` adds what belongs into it and returns what the JSON file shall hold besides;
    `finish` may add to that once it can be read. Others see all of it or nothing."""
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
            if folder.exists():  # damaged: who packs holds the lock, and has looked
                shutil.rmtree(folder, ignore_errors=True)
            os.replace(working, folder)
        finally:
            shutil.rmtree(working, ignore_errors=True)
    except OSError as error:
        raise InputError(_cannot_store(folder, error)) from error


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed file in memory. What is handed out points into it."""

    notes: dict[str, Any]
    """What the JSON file holds."""
    memory: np.ndarray

    def outputs(self, name: str) -> int:
        return self.notes["entries"][name]["outputs"]

    def has(self, name: str) -> bool:
        return name in self.notes["entries"]

    def matrix(self, name: str) -> Matrix:
        place = self.notes["entries"][name]
        return Matrix(self.memory.ctypes.data + place["offset"], place["panels"], place["groups"], place["kind"])

    def vector(self, name: str) -> np.ndarray:
        place = self.notes["entries"][name]
        return self.memory[place["offset"] : place["offset"] + 4 * place["values"]].view(np.float32)


@contextmanager
def packing(folder: Path) -> Iterator[None]:
    """One process at a time: a second one waits, and then finds what the first has made."""
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
    """None where there is none that is whole."""
    try:
        notes = json.loads((folder / ENTRIES).read_text())
        with (folder / WEIGHTS).open("rb") as file:
            # Private: nothing is ever written, and pages are shared with other processes that read the same file.
            memory = np.frombuffer(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ), np.uint8)
        if notes["version"] != VERSION or notes["lanes"] != lanes:
            return None
        whole = all(_end(place, lanes) <= len(memory) for place in notes["entries"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Packed(notes, memory) if whole else None


def read_or_pack(folder: Path, lanes: int, pack: Callable[[], None]) -> Packed:
    """What is there and whole; else what `pack` makes, which one process does while others wait."""
    found = read(folder, lanes)
    if found is None:
        with packing(folder):
            found = read(folder, lanes)
            if found is None:
                pack()
                found = read(folder, lanes)
        assert found is not None, "it was written a moment ago"
    return found


def file_identity(file: Path) -> tuple[str, int, int]:
    """Name, size and time: reading a file of weights would take longer than loading it."""
    status = file.stat()
    return file.name, status.st_size, status.st_mtime_ns


def _end(place: dict[str, int], lanes: int) -> int:
    """The byte behind a matrix or vector."""
    if any(not isinstance(value, int) or value < 0 for value in place.values()):
        raise ValueError("a place that is none")
    if "values" in place:
        return place["offset"] + 4 * place["values"]
    per_group = lanes * (GROUP // 2 + 4 if place["kind"] == FOUR else GROUP + 2)
    if place["outputs"] > place["panels"] * lanes:
        raise ValueError("more outputs than panels")
    return place["offset"] + place["panels"] * place["groups"] * per_group
