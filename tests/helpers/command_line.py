"""`stridelm` in this process, as a user meets it: what it prints, where it prints it, and how it ends."""

import io
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pytest

from stridelm.cli import app as cli


@dataclass(frozen=True)
class Run:
    """How a run ended and what it printed."""

    status: Any
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Call = Callable[..., Run]
CTRL_C = "\x03"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """`stridelm` with these arguments, in this process."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # what chats remember of what was typed

    def run(*arguments: str | Path, stdin: bytes | TextIO | None = b"") -> Run:
        monkeypatch.setattr(sys, "argv", ["stridelm", *map(str, arguments)])
        given = io.TextIOWrapper(io.BytesIO(stdin)) if isinstance(stdin, bytes) else stdin
        monkeypatch.setattr(sys, "stdin", given)
        capsys.readouterr()
        with transformers_speaks_here(), pytest.raises(SystemExit) as end:
            cli.main()
        printed = capsys.readouterr()
        return Run(end.value.code, printed.out, printed.err)

    return run


class Keyboard(io.StringIO):
    """A terminal's: these lines are typed, and Ctrl-C where `CTRL_C` stands, then Ctrl-D."""

    def __init__(self, *lines: str) -> None:
        super().__init__("".join(f"{line}\n" for line in lines))

    def isatty(self) -> bool:
        return True

    def readline(self, size: int = -1, /) -> str:
        line = super().readline(size)
        if line.rstrip("\n") == CTRL_C:
            raise KeyboardInterrupt
        return line


@contextmanager
def transformers_speaks_here() -> Iterator[None]:
    """Its log holds on to the standard error it first saw; what it prints is part of what our user sees."""
    handlers = [each for each in logging.getLogger("transformers").handlers if isinstance(each, logging.StreamHandler)]
    before = [handler.setStream(sys.stderr) for handler in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, before, strict=True):
            handler.setStream(stream or sys.__stderr__)


def assert_refused(run: Run, *words: str) -> None:
    """One line that names what is wrong, nothing else, exit status 2."""
    assert run.status == 2, run
    assert run.out == ""
    assert run.err.startswith("stridelm: ")
    assert run.err.endswith("\n")
    assert run.err.count("\n") == 1, run.err
    for word in words:
        assert word in run.err
