"""A packed file in memory: the same bytes, in huge pages or mapped."""

import mmap
from pathlib import Path

import numpy as np
import pytest

from stridelm.backends.native import huge_pages
from stridelm.backends.native.huge_pages import read_mapped

SIZE = (4 << 20) + 123


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(np.random.default_rng(0).integers(0, 256, SIZE, np.uint8).tobytes())
    return path


def check(path: Path) -> int:
    """The address."""
    with path.open("rb") as opened:
        memory = read_mapped(opened)
    assert memory.tobytes() == path.read_bytes() and not memory.flags.writeable
    return memory.ctypes.data


def test_it_is_copied_to_aligned_memory(file: Path) -> None:
    if not huge_pages._are_offered():
        pytest.skip("this system has no huge pages")
    assert check(file) % (2 << 20) == 0


@pytest.mark.parametrize("name", ["_are_offered", "_available"])
def test_else_it_is_mapped(name: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are no huge pages, or little memory."""
    monkeypatch.setattr(huge_pages, name, lambda: 0)
    monkeypatch.setattr(huge_pages, "_copy", lambda file, size: pytest.fail("nothing is copied"))
    check(file)


def test_a_system_that_refuses_the_advice_gets_a_mapping(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(mmap.mmap):
        def madvise(self, *arguments: int) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(huge_pages.mmap, "mmap", Refused)
    monkeypatch.setattr(huge_pages, "_are_offered", lambda: True)
    check(file)


def test_small_and_empty_files(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.write_bytes(b"abc")
    check(small)
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    with empty.open("rb") as opened, pytest.raises(ValueError, match="empty"):
        read_mapped(opened)
