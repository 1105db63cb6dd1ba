"""A file's bytes in memory, in pages of 2 MB where the system has them. Two threads then read weights at 60 GB/s, not
at 42, since the processor looks up fewer addresses."""

import mmap
import os
from pathlib import Path
from typing import BinaryIO

import numpy as np

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_HUGE = 2 << 20


def read_mapped(file: BinaryIO) -> np.ndarray:
    """Read-only. A copy in huge pages if there is plenty of memory for it, else the file itself, mapped: the pages of a
    file that is in the page cache already stay small, whatever is advised."""
    size = os.fstat(file.fileno()).st_size
    if _are_offered() and _HUGE <= size < _available() // 4:
        copied = _copy(file, size)
        if copied is not None:
            return copied
    # Private: nothing is ever written, so pages are shared with other processes that read the same file.
    return np.frombuffer(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ), np.uint8)


def _copy(file: BinaryIO, size: int) -> np.ndarray | None:
    try:
        memory = mmap.mmap(-1, size + _HUGE, mmap.MAP_PRIVATE)
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return None
    bytes_ = np.frombuffer(memory, np.uint8)
    start = -bytes_.ctypes.data % _HUGE
    held = bytes_[start : start + size]
    if file.readinto(held) != size:  # type: ignore[attr-defined]  # files opened in binary mode have it
        return None
    held.flags.writeable = False
    return held


def _are_offered() -> bool:
    try:
        return "[never]" not in _SETTING.read_text()
    except OSError:
        return False


def _available() -> int:
    """Free memory, in bytes."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
