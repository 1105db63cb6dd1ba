"""Files of prompts, as commands and training read them. Without torch, so that a bad line is reported at once."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stridelm.params import InputError


@dataclass(frozen=True, slots=True)
class PromptLine:
    """One prompt and its place in a file, for later error messages."""

    place: str
    """As in `questions.jsonl, line 3`."""
    prompt: str | list[dict[str, Any]]
    """Text, or a chat's messages."""
    category: str | None = None
    """What kind of prompt it is, for figures by kind."""
    answer: object = None
    """The file's "answer" entry; not checked before `with_answer` is called."""

    @property
    def shown(self) -> str:
        """The prompt for people: a chat's last message, on one line."""
        return " ".join((self.prompt if isinstance(self.prompt, str) else self.prompt[-1]["content"]).split())

    def with_answer(self) -> tuple[str | list[dict[str, Any]], str]:
        """The prompt and its answer: the line's "answer", or a chat's last turn if that is the assistant's."""
        if self.answer is not None:
            return self.prompt, _check_text(self.place, "the answer", self.answer)
        match self.prompt:
            case [_, *_, {"role": "assistant", "content": str(answer)}]:
                return self.prompt[:-1], answer
        raise InputError(
            f'{self.place}: has no answer: give "answer" (text), or messages that end with the assistant\'s'
        )


def read_prompts(file: Path) -> list[PromptLine]:
    """JSON lines if the first line is an object, else plain text, one prompt per line. Blank lines are skipped."""
    lines = [(f"{file}, line {number}", line.strip()) for number, line in enumerate(_read(file).split("\n"), 1)]
    lines = [(place, line) for place, line in lines if line]
    if not lines:
        raise InputError(f"{file}: no prompts in it")
    if lines[0][1].startswith("{"):
        return [_parse(place, line) for place, line in lines]
    return [PromptLine(place, line) for place, line in lines]


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{file}: cannot be read (line {line} is not text in UTF-8)") from error


def _parse(place: str, line: str) -> PromptLine:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not JSON ({error})") from error
    match entry:
        case {"messages": prompt}:
            _check_messages(place, prompt)
        case {"prompt": prompt} | {"question": prompt}:
            _check_text(place, "the prompt", prompt)
        case _:
            raise InputError(f'{place}: needs "messages" (a list), "prompt" or "question" (text)')
    category = entry.get("category")
    if category is not None:
        _check_text(place, "the category", category)
    return PromptLine(place, prompt, category, entry.get("answer"))


def _check_messages(place: str, messages: object) -> None:
    if not isinstance(messages, list) or not messages:
        raise InputError(f"{place}: messages must be a list that is not empty")
    for message in messages:
        match message:
            case {"role": str(role), "content": str(content)}:
                _check_unicode(place, role + content)
            case _:
                raise InputError(f"{place}: each of the messages must have a role and a content, both text")


def _check_text(place: str, what: str, text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{place}: {what} must be text that is not empty")
    _check_unicode(place, text)
    return text


def _check_unicode(place: str, text: str) -> None:
    """JSON can hold half of a surrogate pair, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{place}: not valid Unicode (half a surrogate pair, {text[error.start]!r})") from error
