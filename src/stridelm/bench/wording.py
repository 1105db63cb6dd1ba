"""How figures are shown: one set of columns and phrases for the terminal, the page and the comparison."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stridelm.bench.figures import Figures, Spread

NOTHING = "-"
"""Shown if there is no figure."""


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    """A line break marks where a narrow heading may be broken."""
    meaning: str
    cell: Callable[[Figures], str]
    rank: int = 0
    """If there is too little room, columns are left out from the highest rank down; 0 is always shown."""

    @property
    def heading(self) -> str:
        """The title with a line break only if it splits a word."""
        return re.sub(r"(?<![/-])\n(?!/)", " ", self.title)


def text_verdict(figures: Figures) -> str:
    """How the text compares with plain decoding's. Shown next to the speed-up, which says little without it."""
    if figures.identical is None:
        verdict = "not compared"
    elif figures.differs:
        where = "" if figures.departs_at is None else f" at token {figures.departs_at:.0f}"
        same = f" ({figures.identical:.0%} same)" if figures.identical else ""
        verdict = f"differs{where}{same}"
    else:
        verdict = "same"
    return f"{verdict}, {figures.loops} of {figures.answers} loop" if figures.loops else verdict


def is_alarming(figures: Figures) -> bool:
    """Whether the speed must not be taken at face value, because texts differ or loop."""
    return figures.differs or figures.loops > 0


def interval(spread: Spread | None, form: str, unit: str = "") -> str:
    if spread is None:
        return NOTHING
    return f"{spread.median:{form}}{unit} ({spread.low:{form}}-{spread.high:{form}})"


def multiple(spread: Spread | None) -> str:
    return interval(spread, ".2f", "x")


def milliseconds(seconds: float) -> str:
    """Below 10 ms with one decimal, otherwise without."""
    return f"{1e3 * seconds:.1f}" if seconds < 0.01 else f"{1e3 * seconds:.0f}"


def number(value: float | None, form: str = ".2f") -> str:
    return NOTHING if value is None else format(value, form)


def share(value: float | None) -> str:
    return number(value, ".0%")


def _memory(figures: Figures) -> str:
    return NOTHING if figures.memory_peak is None else f"{figures.memory_peak / 2**30:.2f}"


COLUMNS = (
    Column(
        "speed-up",
        "over the baseline, on the same question in the same round: median (95 % interval)",
        lambda each: multiple(each.speed_up),
    ),
    Column(
        "text",
        "against plain decoding of the same model: the same, or the first token that differs (median); answers that "
        "end in a loop are counted, because a loop is easy to draft",
        text_verdict,
    ),
    Column("tokens\n/s", "of the whole answer, median", lambda each: number(each.speed.median, ".1f")),
    Column("interval", "of tokens/s, 95 %", lambda each: f"{each.speed.low:.1f}-{each.speed.high:.1f}", 13),
    Column("first\nms", "time to the first token, median", lambda each: milliseconds(each.first.median), 3),
    Column("whole\ns", "time until the answer was whole, median", lambda each: number(each.latency.median), 5),
    Column(
        "gap\nms",
        "wait between one token and the next, median; those of a stride come together",
        lambda each: milliseconds(each.gap_p50),
        6,
    ),
    Column("gap ms\np95", "the same, 95th percentile", lambda each: milliseconds(each.gap_p95), 4),
    Column("gap ms\np99", "the same, 99th percentile", lambda each: milliseconds(each.gap_p99), 7),
    Column("tokens/\nforward", "tokens per forward pass", lambda each: number(each.tokens_per_forward), 2),
    Column("rows/\nforward", "rows per forward pass", lambda each: number(each.rows_per_forward, ".1f"), 8),
    Column("right", "answers that a checker found right", lambda each: share(each.right), 1),
    Column("repeats", "4-grams that occurred before in the answer", lambda each: share(each.repetition), 10),
    Column("agrees", "share of the plain answer before the first other token", lambda each: share(each.agreement), 11),
    Column("log-\nlikelihood", "the base model's, a token, mean", lambda each: number(each.log_likelihood), 12),
    Column("memory\nGiB", "resident at most", _memory, 9),
    Column(
        "path",
        "what ran: the backend, and whether it ran whole steps by itself (own steps) or the host took part in each",
        lambda each: each.path or NOTHING,
        15,
    ),
    Column("answers", "questions times rounds", lambda each: str(each.answers), 14),
)


def paths_of(figures: list[Figures]) -> dict[str, list[str]]:
    """By subject, every path that its answers took, if it reports them."""
    paths: dict[str, list[str]] = {}
    for each in figures:
        if each.path is not None and each.path not in paths.setdefault(each.subject, []):
            paths[each.subject].append(each.path)
    return paths


def suites_of(figures: list[Figures]) -> list[str]:
    return list(dict.fromkeys(each.suite for each in figures))


def subjects_of(figures: list[Figures]) -> list[str]:
    return list(dict.fromkeys(each.subject for each in figures))


def flat(entry: dict[str, Any], above: str = "") -> dict[str, str]:
    """A nested record as lines to show: `machine, threads` -> `2`."""
    lines: dict[str, str] = {}
    for key, value in entry.items():
        name = f"{above}, {key}" if above else str(key)
        if isinstance(value, dict):
            lines |= flat(value, name)
        elif isinstance(value, list | tuple):
            lines[name] = ", ".join(map(str, value)) or NOTHING
        elif isinstance(value, bool):
            lines[name] = "yes" if value else "no"
        else:
            lines[name] = NOTHING if value is None else str(value)
    return lines
