"""Files that are whole or not there."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stridelm.files import write_bytes


def test_writing_does_not_wait_for_torch(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from stridelm import files
files.write_json(Path({str(tmp_path / "written")!r}), [1])
from stridelm.bench.page import frontier_picture
from stridelm.bench.page.page import page
from stridelm.bench import records
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert (tmp_path / "written").read_text() == "[\n  1\n]\n"


def test_what_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = tmp_path / "file"
    write_bytes(file, b"before")
    monkeypatch.setattr(os, "fsync", is_full)
    with pytest.raises(OSError, match="No space left") as failed:
        write_bytes(file, b"after")
    assert failed.value.filename == str(file)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"file": b"before"}
