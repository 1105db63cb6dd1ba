"""Compiles C++ to shared objects, once per machine: kept in the cache folder, and called through ctypes."""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from stridelm.backends.common.processor import processor_features
from stridelm.models.builtin import cache_folder

_SECONDS = 240


class CannotCompile(Exception):
    """There is no compiler, or compiling failed. The message says which."""


def check_processor(needed: Mapping[str, tuple[str, ...]]) -> None:
    """Raise CannotCompile if the processor lacks some of what is needed: instruction sets, by kind of machine."""
    machine = platform.machine()
    if machine not in needed:
        raise CannotCompile(f"there are none for {machine or 'this machine'}")
    missing = set(needed[machine]) - processor_features()
    if missing:
        raise CannotCompile(f"the processor has no {', '.join(sorted(missing))}")


def compiled(source: Path, flags: tuple[str, ...], link_flags: tuple[str, ...] = ()) -> Path:
    """The shared object of a source file. Valid for this processor only: the flags may include -march=native."""
    texts = [file.read_text() for file in sorted([source, *source.parent.glob("*.h")])]
    compiler = _compiler()
    parts = (*texts, compiler or "", *flags, *link_flags, *sorted(processor_features()))
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    made = cache_folder() / "native" / f"{source.stem}-{key}.so"
    if made.is_file():
        return made
    compile_to(made, source, flags, link_flags)
    return made


def compile_to(made: Path, source: Path, flags: tuple[str, ...], link_flags: tuple[str, ...]) -> None:
    """Make this shared object; it appears whole or not at all."""
    compiler = _compiler()
    if compiler is None:
        raise CannotCompile("there is no C++ compiler (g++) here")
    try:
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as folder:
            # Compile and link separately: only `link_flags` decide what is linked, not what compile flags would add.
            unlinked, linked = Path(folder) / "unlinked.o", Path(folder) / made.name
            _run(compiler, *flags, "-c", str(source), "-o", str(unlinked))
            _run(compiler, "-shared", *link_flags, str(unlinked), "-o", str(linked))
            os.replace(linked, made)
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotCompile(_reason(error)) from error


def _compiler() -> str | None:
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)


def _reason(error: Exception) -> str:
    said = getattr(error, "stderr", "") or str(error)
    return next((line for line in said.splitlines() if "error" in line), said.strip() or type(error).__name__)
