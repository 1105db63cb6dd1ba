"""Draws the charts of a bench with matplotlib. Nothing is computed here: `bench.charts` holds the data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stridelm.bench.charts import Axis, Bar, Chart, Panel
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
    marker,
    panels,
    require_matplotlib,
)
from stridelm.bench.records import PHASES, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BARS = 24
"""Maximum number of bars in one row of the speed-up plot; with more there would be no room for their numbers."""
_HATCHES = {"same": None, "differs": "///", "not compared": ".."}
_HATCH_MEANINGS = {"differs": "the text differs from plain decoding's", "not compared": "the text was not compared"}
_PHASE_COLOURS: dict[str, str] = dict(zip(PHASES, (*COLOURS[:5], "#999999", COLOURS[5]), strict=True))
"""There is one phase more than colours: a backend's own steps are grey."""


@dataclass(frozen=True, slots=True)
class Picture:
    name: str
    """Also the name of its file."""
    title: str
    reading: str
    """How to read it, in a sentence."""
    figure: "Figure"


def pictures(report: Report, charts: Sequence[Chart]) -> list[Picture]:
    """Draw all charts. Raises InputError without matplotlib."""
    require_matplotlib()
    from matplotlib import style

    with style.context(["default", SETTINGS]):  # regardless of a user's own matplotlib settings
        return [Picture(each.name, each.title, each.reading, draw(each, looks(report))) for each in charts]


def draw(chart: Chart, look: dict[str, Look]) -> "Figure":
    if chart.kind == "bars":
        return _bars(chart, look)
    if chart.kind == "stacks":
        return _stacks(chart)
    if chart.kind == "points":
        return _points(chart, look)
    return _curves(chart, look)


def _bars(chart: Chart, look: dict[str, Look]) -> "Figure":
    """Bars with their intervals, grouped by panel; text that differs is hatched."""
    bars = [bar for panel in chart.panels for bar in panel.bars]
    subjects = list(dict.fromkeys(bar.subject for bar in bars))
    count = -(-len(chart.panels) * len(subjects) // _BARS)
    at_once = -(-len(chart.panels) // count)
    rows = [chart.panels[start : start + at_once] for start in range(0, len(chart.panels), at_once)]
    figure = blank(0.9 + 2.7 * len(rows))
    top = 1.32 * max(1.0, *(bar.high for bar in bars))
    for axes, row in zip(panels(figure, len(rows), 1), rows, strict=True):
        for place, panel in enumerate(row):
            for order, bar in enumerate(panel.bars):
                x = place + (order - (len(panel.bars) - 1) / 2) * 0.82 / len(subjects)
                _bar(axes, x, 0.74 / len(subjects), bar, look[bar.subject])
        axes.axhline(1, color=INK, linewidth=1)
        axes.set(xlim=(-0.5, at_once - 0.5), ylim=(0, top), ylabel=row[0].x.title)
        axes.set_xticks(range(len(row)), [panel.title for panel in row])
        axes.tick_params(axis="x", length=0, labelsize=9)
        axes.grid(visible=False, axis="x")
    legend(figure, _bar_handles(bars, {name: look[name] for name in subjects}))
    return figure


def _bar_handles(bars: list[Bar], look: dict[str, Look]) -> list[object]:
    from matplotlib.patches import Patch

    handles: list[object] = [
        Patch(facecolor=own.colour, edgecolor=INK, linewidth=_outline(own), label=name) for name, own in look.items()
    ]
    handles += [
        Patch(facecolor=GREY, edgecolor=PAPER, hatch=_HATCHES[text], label=meaning)
        for text, meaning in _HATCH_MEANINGS.items()
        if any(bar.text == text for bar in bars)
    ]
    return handles


def _bar(axes: "Axes", x: float, width: float, bar: Bar, look: Look) -> None:
    axes.bar(x, bar.value, width, color=look.colour, edgecolor=PAPER, linewidth=0, hatch=_HATCHES[bar.text])
    if outline := _outline(look):
        axes.bar(x, bar.value, width, fill=False, edgecolor=INK, linewidth=outline)
    ends = ([max(0.0, bar.value - bar.low)], [max(0.0, bar.high - bar.value)])
    axes.errorbar([x], [bar.value], yerr=ends, color=INK, elinewidth=1, capsize=2, fmt="none")
    said = f"{bar.value:.2f}" + (" loops" if bar.loops else "")
    axes.annotate(said, (x, bar.high), (0, 4), textcoords="offset points", rotation=90, ha="center", va="bottom",
                  fontsize=8, color=INK)  # fmt: skip


def _outline(look: Look) -> float:
    """The width of a bar's edge, which distinguishes subjects of the same colour."""
    return 0.0 if look.line == LINES[0] else 1.4


def _stacks(chart: Chart) -> "Figure":
    """One row per subject: a stacked bar of its parts with their shares."""
    from matplotlib.patches import Patch

    (panel,) = chart.panels
    longest = max(sum(stack.parts.values()) for stack in panel.stacks)
    figure = blank(1.3 + 0.42 * len(panel.stacks))
    (axes,) = panels(figure, 1, 1)
    for row, stack in enumerate(panel.stacks):
        start, whole = 0.0, sum(stack.parts.values())
        for name, part in stack.parts.items():
            axes.barh(row, part, 0.66, left=start, color=_PHASE_COLOURS[name], edgecolor=PAPER, linewidth=0.8)
            if part > 0.038 * longest:
                axes.text(start + part / 2, row, f"{part / whole:.0%}", ha="center", va="center", fontsize=8,
                          color="#000000")  # fmt: skip
            start += part
        axes.text(start + 0.008 * longest, row, f"{whole:.1f} ms", va="center", fontsize=8, color=INK)
    axes.set_yticks(range(len(panel.stacks)), [stack.subject for stack in panel.stacks])
    axes.set(xlabel=panel.x.title, xlim=(0, 1.1 * longest))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    names = list(panel.stacks[0].parts)
    legend(figure, [Patch(facecolor=_PHASE_COLOURS[name], label=name) for name in names], columns=len(names))
    return figure


def _curves(chart: Chart, look: dict[str, Look]) -> "Figure":
    """One line per subject in each panel, with a marker at each point unless it is a step curve."""
    columns = min(4, len(chart.panels))
    rows = -(-len(chart.panels) // columns)
    figure = blank(0.7 + (3.0 if columns < 4 else 2.3) * rows)
    handles: dict[str, object] = {}
    are_steps = chart.kind == "steps"
    style = {"drawstyle": "steps-post", "linewidth": 1.6} if are_steps else {"markersize": 4, "linewidth": 1.4}
    for place, (axes, panel) in enumerate(zip(panels(figure, len(chart.panels), columns), chart.panels, strict=True)):
        for series in panel.series:
            own = look[series.subject]
            mark = None if are_steps else own.marker
            (handles[series.subject],) = axes.plot(
                series.x, series.y, color=own.colour, linestyle=own.line, marker=mark, label=series.subject, **style
            )
        headed(axes, panel.title)
        _set_axes(axes, panel, is_first=place % columns == 0)
    legend(figure, list(handles.values()))
    return figure


def _set_axes(axes: "Axes", panel: Panel, is_first: bool) -> None:
    axes.set_xlabel(panel.x.title)
    axes.set_ylabel(panel.y.title if is_first else "")
    _set_scale(axes, panel.x)
    if panel.y.is_share:
        axes.set_ylim(0, 1.03)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    else:
        axes.set_ylim(0, None)


def _set_scale(axes: "Axes", axis: Axis) -> None:
    """A logarithmic axis gets plain numbers as ticks, also between the powers of ten."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    if axis.scale == "log":
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif axis.scale == "whole":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        axes.set_xlim(0, None)


def _points(chart: Chart, look: dict[str, Look]) -> "Figure":
    """One colour per subject and one marker per name, with the line on which x equals y."""
    from matplotlib.lines import Line2D

    (panel,) = chart.panels
    names = list(dict.fromkeys(name for series in panel.series for name in series.names))
    figure = blank(4.4, width=7.0)
    (axes,) = panels(figure, 1, 1)
    ends = [value for series in panel.series for value in (*series.x, *series.y)]
    margin = 0.06 * (max(ends) - min(ends)) or 0.1
    low, high = min(ends) - margin, max(ends) + margin
    axes.plot([low, high], [low, high], color=GREY, linewidth=1, linestyle="--")
    for series in panel.series:
        for x, y, name in zip(series.x, series.y, series.names, strict=True):
            dot = {"color": look[series.subject].colour, "s": 42, "edgecolors": PAPER, "linewidths": 0.6, "zorder": 3}
            axes.scatter(x, y, marker=marker(names.index(name)), **dot)
    axes.set(xlabel=panel.x.title, ylabel=panel.y.title, xlim=(low, high), ylim=(low, high), aspect="equal")
    handles = [
        Line2D([], [], color=look[series.subject].colour, linewidth=5, label=series.subject) for series in panel.series
    ]
    handles += [
        Line2D([], [], color=GREY, marker=marker(place), linestyle="", label=name) for place, name in enumerate(names)
    ]
    place = {"loc": "center left", "bbox_to_anchor": (1.02, 0.5)}
    axes.legend(handles=handles, fontsize=8, frameon=False, labelcolor=INK, **place)
    return figure


NAMES = ("speed-up", "acceptance", "latency", "phases", "theory", "context")
"""The names of all pictures that there may be."""
