"""The questions of a chat: typed at a terminal, with a line editor, or read from a pipe."""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import ModuleType

from stridelm.chat.history import History, history_file
from stridelm.params import InputError

QUOTES = '"""'
"""Around a question of several lines."""
LEAVING = "Ctrl-D or /bye leaves; Ctrl-C stops an answer"
_PROMPT, _MORE = "> ", "... "

Complete = Callable[[str], list[str]]
"""What a line that begins so may go on with, each as the whole line."""


def typed_questions(tell: Callable[[str], None], complete: Complete) -> Iterator[str]:
    """Questions from the terminal until Ctrl-D. Ctrl-C drops what was typed; `tell` shows a message."""
    history = History(history_file())
    editor = _line_editor(history, complete)
    while True:
        try:
            question = _whole_question(input)
        except EOFError:
            print(flush=True)
            return
        except KeyboardInterrupt:
            print(flush=True)
            tell(LEAVING)
            continue
        except UnicodeDecodeError:
            tell("that was not text in UTF-8")
            continue
        except InputError as error:
            print(flush=True)
            tell(f"stridelm: {error}")
            continue
        if history.add(question) and editor is not None:
            editor.add_history(question)
        yield question


def piped_questions() -> Iterator[str]:
    if sys.stdin is None:
        raise InputError("there is no standard input to read questions from")
    stdin = sys.stdin.buffer

    def read(_: str) -> str:
        line = stdin.readline()
        if not line:
            raise EOFError
        try:
            return line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(f"standard input: not text in UTF-8 ({error})") from error

    with suppress(EOFError):
        while True:
            yield _whole_question(read)


def _whole_question(read: Callable[[str], str]) -> str:
    """A line, or what stands between two QUOTES. `read` shows a prompt and returns the next line."""
    line = read(_PROMPT)
    if not line.startswith(QUOTES):
        return line
    lines = [line.removeprefix(QUOTES)]
    try:
        while not lines[-1].rstrip().endswith(QUOTES):
            lines.append(read(_MORE))
    except EOFError as error:
        raise InputError(f"the question that began with {QUOTES} has no {QUOTES} at its end") from error
    lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
    # A line that begins with a space is never a command.
    return " " + "\n".join(lines).strip()


def _line_editor(history: History, complete: Complete) -> ModuleType | None:
    """Python's readline, with which `input` has arrow keys; None where there is none (Windows)."""
    try:
        import readline
    except ImportError:
        return None
    readline.clear_history()
    for entry in history.entries:
        readline.add_history(entry)
    readline.set_auto_history(False)  # a question of several lines is one entry
    # Python switches this off: then each line of a pasted text would be a question of its own.
    readline.parse_and_bind("set enable-bracketed-paste on")
    readline.parse_and_bind("tab: complete")
    readline.set_completer_delims("")
    readline.set_completer(lambda begun, number: dict(enumerate(complete(begun))).get(number))
    return readline
