"""The charts of a bench as data: values and texts. The HTML page draws them with matplotlib, the playground as SVG;
neither computes anything.

charts(report, figures) -> every chart that the report has data for
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any, Literal

from stridelm.bench.figures import Figures
from stridelm.bench.measures import percentile
from stridelm.bench.records import PHASES, Answer, Record, Report
from stridelm.bench.wording import NOTHING, multiple, number, share, subjects_of, suites_of, text_verdict

LONG = "long"
"""The suite whose questions have prompts of many lengths."""
_POINTS = 100
"""Maximum number of points of a latency curve."""


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are shown."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """A speed-up with its interval."""

    subject: str
    value: float
    low: float
    high: float
    text: Literal["same", "differs", "not compared"]
    """Compared with plain decoding's."""
    loops: bool


@dataclass(frozen=True, slots=True)
class Stack:
    """A stacked bar."""

    subject: str
    parts: dict[str, float]


@dataclass(frozen=True, slots=True)
class Series:
    subject: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    names: tuple[str, ...] = ()
    """Names of the points, if they have any."""


@dataclass(frozen=True, slots=True)
class Axis:
    title: str
    scale: Literal["linear", "log", "whole"] = "linear"
    """`whole`: ticks at whole numbers only."""
    is_share: bool = False
    """Whether values are from 0 to 1, shown as percentages."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing of a chart. It holds bars, stacks or series, depending on the kind of chart."""

    title: str
    x: Axis
    y: Axis = Axis("")
    bars: tuple[Bar, ...] = ()
    stacks: tuple[Stack, ...] = ()
    series: tuple[Series, ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    name: str
    """Also the name of its file."""
    title: str
    reading: str
    """How to read it, in a sentence."""
    kind: Literal["bars", "stacks", "lines", "steps", "points"]
    """`points` are drawn together with the line on which x equals y."""
    panels: tuple[Panel, ...]
    table: Table
    """The same data as a table."""


def charts(report: Report, figures: list[Figures]) -> list[Chart]:
    """All charts that the report has data for."""
    made = (
        _speed_up(report.baseline, figures),
        _acceptance(figures),
        _latency(report, figures),
        _phases(report, figures),
        _theory(report.extra.get("theory", [])),
        _context(report, figures),
    )
    return [chart for chart in made if chart is not None]


def _speed_up(baseline: str, figures: list[Figures]) -> Chart | None:
    shown = [each for each in figures if each.speed_up is not None and each.subject != baseline]
    axis = Axis(f"speed-up over {baseline}")
    panels = tuple(
        Panel(suite, axis, bars=tuple(_bar(each) for each in shown if each.suite == suite))
        for suite in suites_of(shown)
    )
    reading = (
        f"How many times as fast as {baseline} on the same question in the same round: bars are medians, thin "
        "lines their 95 % intervals, the line at 1 is the baseline. Another text is other work, and a loop is easy to "
        "draft."
    )
    rows = tuple((each.suite, each.subject, multiple(each.speed_up), text_verdict(each)) for each in shown)
    return _chart("speed-up", "Speed-up by suite", reading, "bars", panels, ("suite", "subject", "speed-up", "text"),
                  rows)  # fmt: skip


def _bar(each: Figures) -> Bar:
    assert each.speed_up is not None
    text = "not compared" if each.identical is None else "differs" if each.differs else "same"
    return Bar(each.subject, each.speed_up.median, each.speed_up.low, each.speed_up.high, text, each.loops > 0)


def _acceptance(figures: list[Figures]) -> Chart | None:
    shown = [each for each in figures if each.acceptance]
    axes = Axis("depth of the draft", "whole"), Axis("accepted", is_share=True)
    panels = tuple(
        Panel(
            suite,
            *axes,
            series=tuple(
                Series(each.subject, tuple(range(1, len(each.acceptance) + 1)), each.acceptance)
                for each in shown
                if each.suite == suite
            ),
        )
        for suite in suites_of(shown)
    )
    reading = (
        "How often a drafted token stands, of those whose predecessor stood: the higher and the flatter, the more "
        "tokens a pass brings."
    )
    depths = range(max((len(each.acceptance) for each in shown), default=0))
    head = ("suite", "subject", *(f"depth {depth + 1}" for depth in depths))
    rows = tuple(
        (each.suite, each.subject, *(share(rate) for _, rate in zip_longest(depths, each.acceptance))) for each in shown
    )
    return _chart("acceptance", "Acceptance by depth", reading, "lines", panels, head, rows)


def _latency(report: Report, figures: list[Figures]) -> Chart | None:
    """Latencies over all suites."""
    answers = _by_subject(report, figures)
    kinds: tuple[tuple[str, Axis, str, Callable[[Answer], list[float]]], ...] = (
        ("Waits between pieces of text", Axis("milliseconds", "log"), ".1f", _waits),
        ("Time to the first token", Axis("milliseconds", "log"), ".0f", lambda answer: [1e3 * answer.first]),
        ("Whole answers", Axis("seconds"), ".2f", lambda answer: [answer.seconds]),
    )
    panels: list[Panel] = []
    cells: dict[str, list[str]] = {subject: [subject] for subject in answers}
    for title, axis, form, values_of in kinds:
        found = {name: [value for answer in own for value in values_of(answer)] for name, own in answers.items()}
        series = tuple(Series(name, *_shares(values)) for name, values in found.items() if values)
        if series:
            panels.append(Panel(title, axis, Axis("share no longer than this", is_share=True), series=series))
        for name, values in found.items():
            ends = [number(percentile(values, at), form) for at in (0.5, 0.95)] if values else [NOTHING]
            cells[name].append(" / ".join(ends))
    reading = (
        "Over all suites, the share that took no longer than so much: a curve further to the left is quicker, a long "
        "tail to the right is felt as stutter. Several tokens that come together wait longer but less often."
    )
    head = ("median / 95th percentile", *(f"{title.lower()}, {axis.title}" for title, axis, _, _ in kinds))
    return _chart("latency", "Latencies", reading, "steps", tuple(panels), head, tuple(map(tuple, cells.values())))


def _waits(answer: Answer) -> list[float]:
    return [1e3 * (after - before) for before, after in pairwise(answer.stride_seconds)]


def _shares(values: list[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Values, and for each the share of values that are at most as large. About a hundred points are enough to show the
    curve of a long run."""
    ordered = [float(f"{value:.4g}") for value in sorted(values)]
    ranks = sorted({round(step * (len(ordered) - 1) / _POINTS) for step in range(_POINTS + 1)})
    shares = (round((rank + 1) / len(ordered), 4) for rank in ranks)
    return (ordered[0], *(ordered[rank] for rank in ranks)), (0.0, *shares)


def _phases(report: Report, figures: list[Figures]) -> Chart | None:
    """The time per token by phase, over all suites."""
    stacks: list[Stack] = []
    for subject, answers in _by_subject(report, figures).items():
        telling = [answer for answer in answers if answer.phases]
        if tokens := sum(answer.count for answer in telling):
            spent = {phase: sum(answer.phases.get(phase, 0.0) for answer in telling) for phase in PHASES}
            stacks.append(Stack(subject, {phase: 1e3 * seconds / tokens for phase, seconds in spent.items()}))
    used = [phase for phase in PHASES if any(stack.parts[phase] for stack in stacks)]
    reading = (
        "What a token costs, by phase, over all suites: shorter is faster, and the widest part is what to work on."
    )
    stacks = [Stack(each.subject, {phase: each.parts[phase] for phase in used}) for each in stacks]
    rows = tuple((each.subject, *map(number, each.parts.values()), number(sum(each.parts.values()))) for each in stacks)
    panel = Panel("", Axis("milliseconds a token"), stacks=tuple(stacks))
    head = ("milliseconds a token", *used, "whole")
    return _chart("phases", "Where the time goes", reading, "stacks", (panel,), head, rows)


def _theory(points: list[dict[str, Any]]) -> Chart | None:
    series: list[Series] = []
    for subject in dict.fromkeys(point["subject"] for point in points):
        own = [point for point in points if point["subject"] == subject]
        columns = zip(*((point["expected"], point["measured"], point["suite"]) for point in own), strict=True)
        series.append(Series(subject, *columns))
    panel = Panel("", Axis("speed-up that theory expects"), Axis("speed-up as measured"), series=tuple(series))
    reading = "Each point is a subject on a suite: on the line it does what theory says, under it something is lost."
    rows = tuple(
        (each["suite"], each["subject"], f"{each['expected']:.2f}x", f"{each['measured']:.2f}x") for each in points
    )
    return _chart("theory", "Measured against theory", reading, "points", (panel,),
                  ("suite", "subject", "expected", "measured"), rows)  # fmt: skip


def _context(report: Report, figures: list[Figures]) -> Chart | None:
    """Tokens per forward and the share of accepted drafts, by length of the prompt, in the suite `long`."""
    pace: list[Series] = []
    accepted: list[Series] = []
    rows: list[tuple[str, ...]] = []
    for subject in subjects_of(figures):
        groups = _by_length([each for each in report.records if (each.suite, each.subject) == (LONG, subject)])
        found = [(length, _tokens_per_forward(group), _accepted(group)) for length, group in groups.items()]
        rows += [(subject, number(length, ".0f"), number(own), share(stood)) for length, own, stood in found]
        for series, place in ((pace, 1), (accepted, 2)):
            points = [(each[0], each[place]) for each in found if each[place] is not None]
            if points:
                series.append(Series(subject, *zip(*points, strict=True)))
    axis = Axis("tokens of the prompt", "log")
    panels = (
        Panel("Tokens per forward", axis, series=tuple(pace)),
        Panel("Drafts accepted, of all looked at", axis, Axis("", is_share=True), series=tuple(accepted)),
    )
    reading = "Whether drafts stay as good when the prompt grows: a level line is one that does not mind."
    head = ("subject", "tokens of the prompt", "tokens per forward", "accepted")
    return _chart("context", "By length of the context", reading, "lines", panels, head, tuple(rows))


def _by_length(records: list[Record]) -> dict[float, list[Answer]]:
    """Answers grouped by about equal length of the prompt, keyed by the median length; only those that report their
    number of forwards."""
    found: dict[int, list[Answer]] = {}
    answers = [record.answer for record in records if record.answer.forwards]
    for answer in sorted(answers, key=lambda answer: answer.prompt_tokens):
        found.setdefault(round(2 * math.log2(max(1, answer.prompt_tokens))), []).append(answer)
    return {statistics.median(answer.prompt_tokens for answer in group): group for group in found.values()}


def _tokens_per_forward(answers: list[Answer]) -> float | None:
    forwards = sum(answer.forwards or 0 for answer in answers)
    return sum(answer.count for answer in answers) / forwards if forwards else None


def _accepted(answers: list[Answer]) -> float | None:
    drafted = sum(sum(answer.drafted_by_depth) for answer in answers)
    return sum(sum(answer.accepted_by_depth) for answer in answers) / drafted if drafted else None


def _by_subject(report: Report, figures: list[Figures]) -> dict[str, list[Answer]]:
    found: dict[str, list[Answer]] = {subject: [] for subject in subjects_of(figures)}
    for record in report.records:
        found[record.subject].append(record.answer)
    return found


def _chart(
    name: str,
    title: str,
    reading: str,
    kind: Literal["bars", "stacks", "lines", "steps", "points"],
    panels: tuple[Panel, ...],
    head: tuple[str, ...],
    rows: tuple[tuple[str, ...], ...],
) -> Chart | None:
    """None if there is nothing to draw."""
    panels = tuple(panel for panel in panels if panel.bars or panel.stacks or panel.series)
    return Chart(name, title, reading, kind, panels, Table(title, head, rows)) if panels else None
