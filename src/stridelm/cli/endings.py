"""How the command line ends when something is wrong: what to tell the user, and what only --debug shows."""

import errno
import os

import typer

from stridelm.params import InputError

# The base of all usage errors. typer brings its own click or uses the installed one, depending on its version.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ENAMETOOLONG)
"""What a user can mend about a file that cannot be written."""


def without_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """The arguments without --debug, and whether it was there. What follows `--` is not an option."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = [argument for argument in arguments[:end] if argument != "--debug"]
    return options + arguments[end:], len(options) < end


def complaint(error: Exception) -> str | None:
    """What to tell the user; None for what they cannot mend."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, _UsageError):
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context else ""
        return error.format_message() + hint  # type: ignore[attr-defined]
    if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
        return f"{error.filename or 'the output'}: {error.strerror}"
    return None


def drop_output() -> None:
    """Nothing more can be written: what is still in Python's buffer must not fail once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
