"""The display of a chat: strides in alternating colours, and a dim line of figures below each answer."""

import sys
from collections.abc import Iterator

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType

from stridelm.chat.questions import Complete, piped_questions, typed_questions
from stridelm.chat.speaker import Report
from stridelm.chat.wrap import WordWrap

STRIDE_STYLES = ("bold", "cyan")
"""Strides alternate between these, so that the user sees what each forward pass added."""
_MAX_STRIDES = 24
"""Number of strides that /stats shows of the last answer."""
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
        self._wrap = WordWrap(self._out.width - 1)

    def questions(self, complete: Complete) -> Iterator[str]:
        """What the user types, or the lines of a pipe, to the end."""
        return typed_questions(self.tell, complete) if self.is_interactive else piped_questions()

    def show(self, text: str) -> None:
        """Print a piece of an answer."""
        if self._has_colours:
            self._show_wrapped(text.translate(_UNPRINTABLE), STRIDE_STYLES[self._pieces % 2])
        else:
            print(text, end="", flush=True)  # as it is: a console would turn tabs into spaces
        self._pieces += 1
        self._line_is_open = not text.endswith("\n") if text else self._line_is_open

    def _show_wrapped(self, text: str, style: str) -> None:
        for piece in self._wrap.add(text, style):
            if isinstance(piece, int):
                self._out.control(Control.move(-piece), Control((ControlType.ERASE_IN_LINE, 0)))
            else:
                self._out.out(piece[0], end="", style=piece[1])

    def end_answer(self, report: Report | None, *, is_interrupted: bool = False) -> None:
        """`report` is None for an answer that failed."""
        if self._line_is_open or (report is not None and not self._pieces):
            print(flush=True)
        self._pieces, self._line_is_open = 0, False
        self._wrap = WordWrap(self._out.width - 1)  # the window may have another width by now
        if report is not None:
            self.tell(summary(report, is_interrupted=is_interrupted))

    def tell(self, text: str) -> None:
        if self._aside.is_terminal:
            self._aside.out(text.translate(_UNPRINTABLE), style="dim")
        else:
            print(text, file=sys.stderr, flush=True)


def summary(report: Report, *, is_interrupted: bool = False) -> str:
    """An answer's figures in one short line; /stats has the others."""
    parts = ["interrupted"] if is_interrupted else []
    if report.tokens is not None:
        parts.append(f"{report.tokens} tokens")
    if report.tokens_per_second is not None:
        parts.append(f"{report.tokens_per_second:.1f} tokens/s")
    else:
        parts.append(f"{report.seconds:.1f} s")
    if report.tokens_per_forward is not None:
        parts.append(f"{report.tokens_per_forward:.2f} per forward")
    if report.exact is not None:
        parts.append("exact" if report.exact else "not exact")
    if report.finish_reason == "length":
        parts.append("cut off")
    return ", ".join(parts)


def details(report: Report) -> list[str]:
    """What the short line leaves out, as far as it is known."""
    lines: list[str] = []
    if report.first is not None:
        lines.append(f"first piece after {report.first * 1e3:.0f} ms")
    if report.path is not None:
        lines.append(f"ran by {report.path}")
    if picture := stride_picture(report):
        lines.append(f"strides {picture}")
    if report.exact_to is not None:
        lines.append(f"{'exact' if report.exact else 'not exact'} with respect to {report.exact_to}")
    return lines


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
