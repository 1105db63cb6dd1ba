"""The turns of a chat."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from stridelm.params import InputError


@dataclass(slots=True)
class Turn:
    """A question and its answer."""

    question: str
    answer: str | None = None
    """None if there is no answer: it is being written, or it failed."""
    is_interrupted: bool = False
    """Whether the user stopped the answer."""


@dataclass(slots=True)
class Conversation:
    """The turns so far. Only the last one may lack an answer."""

    system: str | None = None
    turns: list[Turn] = field(default_factory=list)

    def ask(self, question: str) -> Turn:
        """Begin a turn. If the turn before it got no answer, it is dropped: no model takes two questions in a row."""
        if self.turns and self.turns[-1].answer is None:
            self.turns.pop()
        self.turns.append(Turn(question))
        return self.turns[-1]

    def undo(self) -> Turn:
        """Take the last turn back."""
        if not self.turns:
            raise InputError("nothing was said yet")
        return self.turns.pop()

    def messages(self) -> list[dict[str, str]]:
        """The messages, in the format of models and servers."""
        return [{"role": message["role"], "content": message["content"]} for message in self._entries()]

    def save(self, file: Path) -> int:
        """Write a new file of JSON lines, one per message; returns how many."""
        lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in self._entries()]
        if not lines:
            raise InputError("nothing was said yet")
        try:
            with file.open("x", encoding="utf-8") as out:
                out.writelines(lines)
        except FileExistsError as error:
            raise InputError(f"{file}: is there already: name another file") from error
        except (OSError, ValueError) as error:  # a ValueError for a NUL in the name, or half a character in the text
            raise InputError(f"{file}: cannot be written ({getattr(error, 'strerror', None) or error})") from error
        return len(lines)

    def _entries(self) -> list[dict[str, str]]:
        entries = [] if self.system is None else [{"role": "system", "content": self.system}]
        for turn in self.turns:
            entries.append({"role": "user", "content": turn.question})
            if turn.answer is not None:
                mark = {"finish_reason": "interrupted"} if turn.is_interrupted else {}
                entries.append({"role": "assistant", "content": turn.answer} | mark)
        return entries
