"""The plots of what a bench measured: speed-ups, acceptance by depth, latencies, and where the time goes.

Each function returns a matplotlib figure, or None where the report has nothing to draw. `pictures` draws all there are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from stridelm.bench.figures import Figures
from stridelm.bench.page.plot_style import (
    COLOURS,
    GREY,
    INK,
    LINES,
    PAPER,
    SETTINGS,
    Look,
    blank,
    headed,
    legend,
    looks,
    panels,
    require_matplotlib,
)
from stridelm.bench.page.plots_extra import context, theory
from stridelm.bench.records import PHASES, Report
from stridelm.bench.wording import subjects_of, suites_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BARS = 24
"""In one row of the speed-up plot; more could not carry their figures."""
_POINTS = 300
"""Of a curve of latencies, at most."""
_DIFFERS, _UNKNOWN = "///", ".."
"""Hatches of bars whose text is another, or is not known to be the same."""


@dataclass(frozen=True, slots=True)
class Picture:
    name: str
    """Of its file, too."""
    title: str
    reading: str
    """How to read it, in a sentence."""
    figure: "Figure"


_Draw = Callable[[Report, list[Figures]], "Figure | None"]


def pictures(report: Report, figures: list[Figures]) -> list[Picture]:
    """All that the report has something for. Raises InputError without matplotlib."""
    require_matplotlib()
    from matplotlib import style

    with style.context(["default", SETTINGS]):  # whatever a user's own settings of matplotlib say
        drawn = [(name, title, reading, draw(report, figures)) for name, title, reading, draw in _PICTURES]
    return [Picture(name, title, reading, figure) for name, title, reading, figure in drawn if figure is not None]


def speed_up(report: Report, figures: list[Figures]) -> "Figure | None":
    """Grouped bars by suite, with intervals; text that differs is hatched."""
    from matplotlib.patches import Patch

    shown = [each for each in figures if each.speed_up is not None and each.subject != report.baseline]
    if not shown:
        return None
    look, subjects, suites = looks(report), subjects_of(shown), suites_of(shown)
    count = -(-len(suites) * len(subjects) // _BARS)
    at_once = -(-len(suites) // count)
    rows = [suites[start : start + at_once] for start in range(0, len(suites), at_once)]
    figure = blank(0.9 + 2.7 * len(rows))
    top = 1.32 * max(1.0, *(each.speed_up.high for each in shown if each.speed_up))
    for axes, row in zip(panels(figure, len(rows), 1), rows, strict=True):
        for place, suite in enumerate(row):
            part = [each for each in shown if each.suite == suite]
            for order, each in enumerate(part):
                _bar(axes, place + (order - (len(part) - 1) / 2) * 0.82 / len(subjects), 0.74 / len(subjects), each,
                     look[each.subject])  # fmt: skip
        axes.axhline(1, color=INK, linewidth=1)
        axes.set(xlim=(-0.5, at_once - 0.5), ylim=(0, top), ylabel=f"speed-up over {report.baseline}")
        axes.set_xticks(range(len(row)), row)
        axes.tick_params(axis="x", length=0, labelsize=9)
        axes.grid(visible=False, axis="x")
    handles = [
        Patch(facecolor=look[name].colour, edgecolor=INK, linewidth=_outline(look[name]), label=name)
        for name in subjects
    ]
    marks = ((_DIFFERS, "the text differs from plain decoding's", any(each.differs for each in shown)),
             (_UNKNOWN, "the text was not compared", any(each.identical is None for each in shown)))  # fmt: skip
    handles += [
        Patch(facecolor=GREY, edgecolor=PAPER, hatch=hatch, label=label) for hatch, label, is_there in marks if is_there
    ]
    legend(figure, handles)
    return figure


def _bar(axes: "Axes", x: float, width: float, each: Figures, look: Look) -> None:
    found = each.speed_up
    assert found is not None
    hatch = _DIFFERS if each.differs else _UNKNOWN if each.identical is None else None
    axes.bar(x, found.median, width, color=look.colour, edgecolor=PAPER, linewidth=0, hatch=hatch)
    if outline := _outline(look):
        axes.bar(x, found.median, width, fill=False, edgecolor=INK, linewidth=outline)
    ends = ([max(0.0, found.median - found.low)], [max(0.0, found.high - found.median)])
    axes.errorbar([x], [found.median], yerr=ends, color=INK, elinewidth=1, capsize=2, fmt="none")
    said = f"{found.median:.2f}" + (" loops" if each.loops else "")
    axes.annotate(said, (x, found.high), (0, 4), textcoords="offset points", rotation=90, ha="center", va="bottom",
                  fontsize=8, color=INK)  # fmt: skip


def _outline(look: Look) -> float:
    """The width of a bar's edge: those whose colour another subject has already are told apart by it."""
    return 0.0 if look.line == LINES[0] else 1.4


def acceptance(report: Report, figures: list[Figures]) -> "Figure | None":
    """A panel a suite, a line a subject: how often a draft of each depth stands, its parent having stood."""
    from matplotlib.ticker import MaxNLocator

    shown = [each for each in figures if each.acceptance]
    if not shown:
        return None
    look, suites = looks(report), suites_of(shown)
    columns = min(4, len(suites))
    figure = blank(0.7 + 2.3 * -(-len(suites) // columns))
    handles: dict[str, object] = {}
    for place, (axes, suite) in enumerate(zip(panels(figure, len(suites), columns), suites, strict=True)):
        for each in shown:
            if each.suite == suite:
                own = look[each.subject]
                (handles[each.subject],) = axes.plot(
                    range(1, len(each.acceptance) + 1), each.acceptance, color=own.colour, label=each.subject,
                    linestyle=own.line, marker=own.marker, markersize=4, linewidth=1.4,
                )  # fmt: skip
        headed(axes, suite)
        axes.set(xlabel="depth of the draft", ylim=(0, 1.03))
        axes.set_ylabel("accepted" if place % columns == 0 else "")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(figure, list(handles.values()))
    return figure


def latency(report: Report, figures: list[Figures]) -> "Figure | None":
    """Of each subject, over all suites: the share of waits, and of answers, that took no longer than so much."""
    look, subjects = looks(report), subjects_of(figures)
    gaps: dict[str, list[float]] = {name: [] for name in subjects}
    wholes: dict[str, list[float]] = {name: [] for name in subjects}
    for record in report.records:
        if record.subject in gaps:
            gaps[record.subject] += [1e3 * (after - before) for before, after in pairwise(record.answer.stride_seconds)]
            wholes[record.subject].append(record.answer.seconds)
    if not any(wholes.values()):
        return None
    figure = blank(3.7)
    left, right = panels(figure, 2, 2)
    handles: dict[str, object] = {}
    for axes, found in ((left, gaps), (right, wholes)):
        for name, values in found.items():
            if values:
                own = look[name]
                (handles[name],) = axes.plot(
                    *_shares(values), color=own.colour, linestyle=own.line, linewidth=1.6, label=name,
                    drawstyle="steps-post",
                )  # fmt: skip
        axes.set(ylim=(0, 1.01), ylabel="share no longer than this")
    headed(left, "Waits between one piece of text and the next")
    left.set(xlabel="milliseconds", xscale="log")
    headed(right, "Whole answers")
    right.set(xlabel="seconds", xlim=(0, None))
    _plain_ticks(left)
    for height in (0.5, 0.95):
        left.axhline(height, color=GREY, linewidth=0.8, linestyle=":")
    legend(figure, list(handles.values()))
    return figure


def _shares(values: list[float]) -> tuple[list[float], list[float]]:
    """Values, and which share is no longer: a few hundred points say the same as all of a long run, in less room."""
    ordered = sorted(values)
    ranks = sorted({round(step * (len(ordered) - 1) / _POINTS) for step in range(_POINTS + 1)})
    return [ordered[0], *(ordered[rank] for rank in ranks)], [0.0, *((rank + 1) / len(ordered) for rank in ranks)]


def _plain_ticks(axes: "Axes") -> None:
    """Numbers as people write them on a logarithmic axis, some between the powers of ten as well."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


_PHASE_COLOURS: dict[str, str] = dict(zip(PHASES, (*COLOURS[:5], "#999999", COLOURS[5]), strict=True))
"""One more than there are of the others: the steps of a backend's own are grey."""


def phases(report: Report, figures: list[Figures]) -> "Figure | None":
    """What a token costs and where: stacked bars, over all suites."""
    from matplotlib.patches import Patch

    spent: dict[str, dict[str, float]] = {}
    tokens: dict[str, int] = {}
    for record in report.records:
        if record.answer.phases:
            own = spent.setdefault(record.subject, {})
            for phase, seconds in record.answer.phases.items():
                own[phase] = own.get(phase, 0.0) + seconds
            tokens[record.subject] = tokens.get(record.subject, 0) + record.answer.count
    subjects = [name for name in subjects_of(figures) if tokens.get(name)]
    if not subjects:
        return None
    found = {name: {phase: 1e3 * spent[name].get(phase, 0) / tokens[name] for phase in PHASES} for name in subjects}
    longest = max(sum(each.values()) for each in found.values())
    figure = blank(1.3 + 0.42 * len(subjects))
    (axes,) = panels(figure, 1, 1)
    for row, each in enumerate(found.values()):
        start, whole = 0.0, sum(each.values())
        for phase, milliseconds in each.items():
            axes.barh(row, milliseconds, 0.66, left=start, color=_PHASE_COLOURS[phase], edgecolor=PAPER, linewidth=0.8)
            if milliseconds > 0.038 * longest:
                axes.text(start + milliseconds / 2, row, f"{milliseconds / whole:.0%}", ha="center", va="center",
                          fontsize=8, color="#000000")  # fmt: skip
            start += milliseconds
        axes.text(start + 0.008 * longest, row, f"{whole:.1f} ms", va="center", fontsize=8, color=INK)
    axes.set_yticks(range(len(subjects)), subjects)
    axes.set(xlabel="milliseconds a token", xlim=(0, 1.1 * longest))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    used = [phase for phase in PHASES if any(each[phase] for each in found.values())]
    legend(figure, [Patch(facecolor=_PHASE_COLOURS[phase], label=phase) for phase in used], columns=len(used))
    return figure


_PICTURES: tuple[tuple[str, str, str, _Draw], ...] = (
    (
        "speed-up", "Speed-up by suite",
        "How many times as fast as the baseline on the same question in the same round: bars are medians, thin lines "
        "their 95 % intervals, the line at 1 is the baseline. A hatched bar wrote another text, so it did other work; "
        "“loops” says that answers repeat themselves, which is easy to draft.", speed_up,
    ),
    (
        "acceptance", "Acceptance by depth",
        "How often a drafted token stands, of those whose predecessor stood: the higher and the flatter, the more "
        "tokens a pass brings.", acceptance,
    ),
    (
        "latency", "Latencies",
        "The share of waits (left) and of whole answers (right) that took no longer than so much: a curve further to "
        "the left is quicker, a long tail to the right is felt as stutter. Several tokens that come together wait "
        "longer but less often.", latency,
    ),
    (
        "phases", "Where the time goes",
        "What a token costs, by phase, over all suites: shorter is faster, and the widest part is what to work on.",
        phases,
    ),
    (
        "theory", "Measured against theory",
        "Each point is a subject on a suite: on the line it does what theory says, under it something is lost.",
        lambda report, figures: theory(report),
    ),
    (
        "context", "By length of the context",
        "Whether drafts stay as good when the prompt grows: a level line is one that does not mind.",
        lambda report, figures: context(report),
    ),
)  # fmt: skip
NAMES = tuple(name for name, *_ in _PICTURES)
"""Of all pictures there may be."""
