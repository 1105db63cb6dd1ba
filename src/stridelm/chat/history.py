"""What was typed in chats before: kept in a file for the next one, within a bound."""

import json
import os
from contextlib import suppress
from pathlib import Path

MAX_ENTRIES = 1000
"""The file is cut to so many when a chat begins, so it may hold more while one runs."""
MAX_LETTERS = 10_000
"""A longer entry is not kept: it was pasted."""


def history_file() -> Path:
    root = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(root) / "stridelm" / "chat-history.jsonl"


class History:
    """Entries, oldest first. A file that cannot be read or written costs the history, not the chat."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.entries: list[str] = []
        with suppress(OSError):
            lines = file.read_bytes().splitlines()
            self.entries = [entry for line in lines if (entry := _entry(line)) is not None][-MAX_ENTRIES:]
            if len(self.entries) < len(lines):
                self._write(self.entries, os.O_TRUNC)

    def add(self, entry: str) -> bool:
        """Whether it was added: what is long, was said just before, or holds a NUL (no line editor takes it) is not."""
        if len(entry) > MAX_LETTERS or not entry.strip() or "\0" in entry or self.entries[-1:] == [entry]:
            return False
        self.entries.append(entry)
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._write([entry], os.O_APPEND)
        return True

    def _write(self, entries: list[str], how: int) -> None:
        """For the user's own eyes."""
        with os.fdopen(os.open(self._file, os.O_WRONLY | os.O_CREAT | how, 0o600), "wb") as file:
            file.write("".join(f"{json.dumps(entry)}\n" for entry in entries).encode())


def _entry(line: bytes) -> str | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, str) else None
