"""The display of a chat: strides in alternating colours, and a dim line of figures below each answer."""

import sys
from collections.abc import Iterator
from contextlib import suppress

from rich.console import Console

from stridelm.chat.speaker import Report
from stridelm.params import InputError

STRIDE_STYLES = ("bold", "cyan")
"""Strides alternate between these, so that the user sees what each forward pass added."""
_PROMPT = "> "
_MAX_STRIDES = 24
"""Number of strides shown below an answer, the last ones; /stats counts all."""
_MAX_BAR = 40
_UNPRINTABLE = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"} | {
    ord("\r"): None
}
"""Control characters are replaced: text from elsewhere must not control the terminal."""


class Screen:
    """Answers go to standard output, all else to standard error. Colours only if input and output are terminals."""

    def __init__(self) -> None:
        self._out = Console(highlight=False)
        self._aside = Console(stderr=True, highlight=False)
        self.is_interactive = sys.stdin is not None and sys.stdin.isatty()
        self._has_colours = self.is_interactive and self._out.is_terminal
        self._pieces = 0
        self._line_is_open = False

    def lines(self) -> Iterator[str]:
        """The lines that the user types, or those of a pipe, to the end. Ctrl-C at the prompt is raised."""
        if not self.is_interactive:
            yield from _piped_lines()
            return
        with suppress(ImportError):
            import readline  # noqa: F401 (from now on, the prompt has arrow keys and a history)
        while True:
            try:
                yield input(_PROMPT)
            except EOFError:
                print(flush=True)
                return
            except KeyboardInterrupt:
                print(flush=True)
                raise
            except UnicodeDecodeError:
                self.tell("that was not text in UTF-8")

    def show(self, text: str) -> None:
        """Print a piece of an answer."""
        if self._has_colours:
            self._out.out(text.translate(_UNPRINTABLE), end="", style=STRIDE_STYLES[self._pieces % 2])
        else:
            print(text, end="", flush=True)  # as it is: a console would turn tabs into spaces
        self._pieces += 1
        self._line_is_open = not text.endswith("\n") if text else self._line_is_open

    def end_answer(self, report: Report | None, *, is_interrupted: bool = False) -> None:
        """`report` is None for an answer that failed."""
        if self._line_is_open or (report is not None and not self._pieces):
            print(flush=True)
        self._pieces, self._line_is_open = 0, False
        if report is not None:
            picture = stride_picture(report)
            line = summary(report, is_interrupted=is_interrupted)
            self.tell(f"{line}; strides {picture}" if picture else line)

    def tell(self, text: str) -> None:
        if self._aside.is_terminal:
            self._aside.out(text.translate(_UNPRINTABLE), style="dim")
        else:
            print(text, file=sys.stderr, flush=True)


def _piped_lines() -> Iterator[str]:
    if sys.stdin is None:
        raise InputError("there is no standard input to read questions from")
    for line in sys.stdin.buffer:
        try:
            text = line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(f"standard input: not text in UTF-8 ({error})") from error
        yield text


def summary(report: Report, *, is_interrupted: bool = False) -> str:
    """An answer's figures in one line, without its strides."""
    parts = ["interrupted"] if is_interrupted else []
    if report.tokens is not None:
        parts.append(f"{report.tokens} tokens")
    if report.tokens_per_second is not None:
        parts.append(f"{report.tokens_per_second:.1f} tokens/s")
    else:
        parts.append(f"{report.seconds:.1f} s")
    if report.first is not None:
        parts.append(f"first after {report.first * 1e3:.0f} ms")
    if report.tokens_per_forward is not None:
        parts.append(f"{report.tokens_per_forward:.2f} per forward")
    if report.path is not None:
        parts.append(report.path)
    if report.exact is not None:
        parts.append("exact" if report.exact else "not exact")
    if report.finish_reason == "length":
        parts.append("cut off")
    return ", ".join(parts)


def stride_picture(report: Report) -> str:
    """The last strides in order; if the order is not known, how often each length occurred."""
    if report.strides:
        more = "... " if len(report.strides) > _MAX_STRIDES else ""
        return more + " ".join(map(str, report.strides[-_MAX_STRIDES:]))
    return " ".join(f"{count} x {length}" for length, count in sorted(report.histogram.items()))


def stride_bars(report: Report) -> list[str]:
    """For each number of tokens, a bar that shows how many forward passes added that many."""
    most = max(report.histogram.values(), default=1)
    return [
        f"{length:>4} {'#' * max(1, round(count / most * _MAX_BAR))} {count}"
        for length, count in sorted(report.histogram.items())
    ]
