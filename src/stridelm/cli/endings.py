"""How the command line ends after an error: what the user sees, and what only --debug shows."""

import errno
import os

import typer

from stridelm.light import LEFT_OUT, needs_torch
from stridelm.params import InputError

# The base of all usage errors. typer brings its own click or uses the installed one, depending on its version.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_FIXABLE_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENAMETOOLONG)
"""Reasons why a file cannot be written that a user can fix."""


def without_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """The arguments without --debug, and whether it was there. What follows `--` is not an option."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = [argument for argument in arguments[:end] if argument != "--debug"]
    return options + arguments[end:], len(options) < end


def complaint(error: Exception) -> str | None:
    """The message for the user; None for an error that they cannot fix."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, _UsageError):
        context = getattr(error, "ctx", None)
        message: str = error.format_message()  # type: ignore[attr-defined]
        if message.startswith("Got unexpected extra argument"):
            message += ": put a text of several words in quotes"
        return f"{message} (see {context.command_path} --help)" if context else message
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in LEFT_OUT:
        return str(needs_torch("this command"))
    if isinstance(error, OSError) and error.errno in _FIXABLE_DISK_ERRORS:
        return f"{error.filename or 'the output'}: {error.strerror}"
    return None


def drop_output() -> None:
    """Discard all further output, so that what is left in Python's buffer does not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
