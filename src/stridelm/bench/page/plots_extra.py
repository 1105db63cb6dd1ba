"""The plots of what other parts of a bench found: theory, and contexts of many lengths. None where the report has
nothing of the kind."""

import math
import statistics
from typing import TYPE_CHECKING, Any

from stridelm.bench.page.plot_style import GREY, INK, PAPER, blank, colour, headed, legend, looks, marker, panels
from stridelm.bench.records import Record, Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONG = "long"
"""The suite whose questions have prompts of many lengths."""


def theory(report: Report) -> "Figure | None":
    """Measured over expected, one point a suite and subject, beside the line on which they are the same."""
    from matplotlib.lines import Line2D

    points: list[dict[str, Any]] = report.extra.get("theory", [])
    if not points:
        return None
    subjects = list(dict.fromkeys(point["subject"] for point in points))
    colours = {name: colour(place) for place, name in enumerate(subjects)}
    colours |= {name: look.colour for name, look in looks(report).items()}
    suites = list(dict.fromkeys(point["suite"] for point in points))
    figure = blank(4.4, width=7.0)
    (axes,) = panels(figure, 1, 1)
    ends = [point[name] for point in points for name in ("expected", "measured")]
    margin = 0.06 * (max(ends) - min(ends)) or 0.1
    low, high = min(ends) - margin, max(ends) + margin
    axes.plot([low, high], [low, high], color=GREY, linewidth=1, linestyle="--")
    for point in points:
        dot = {"color": colours[point["subject"]], "s": 42, "edgecolors": PAPER, "linewidths": 0.6}
        axes.scatter(point["expected"], point["measured"], marker=marker(suites.index(point["suite"])),
                     zorder=3, **dot)  # fmt: skip
    axes.set(xlabel="as theory expects", ylabel="as measured", xlim=(low, high), ylim=(low, high), aspect="equal")
    handles = [Line2D([], [], color=colours[name], linewidth=5, label=name) for name in subjects]
    handles += [
        Line2D([], [], color=GREY, marker=marker(place), linestyle="", label=name) for place, name in enumerate(suites)
    ]
    place = {"loc": "center left", "bbox_to_anchor": (1.02, 0.5)}
    axes.legend(handles=handles, fontsize=8, frameon=False, labelcolor=INK, **place)
    return figure


def context(report: Report) -> "Figure | None":
    """Of the long suite, over the prompt's tokens: tokens per forward and the share of drafts that stood."""
    records = [record for record in report.records if record.suite == LONG and record.answer.forwards]
    if not records:
        return None
    figure = blank(3.6)
    left, right = panels(figure, 2, 2)
    handles: dict[str, object] = {}
    for name, look in looks(report).items():
        groups = _by_length([record for record in records if record.subject == name])
        for axes, measure in ((left, _pace), (right, _accepted)):
            line = {length: measure(group) for length, group in groups.items()}
            line = {length: value for length, value in line.items() if value is not None}
            if line:
                (handles[name],) = axes.plot(
                    list(line), list(line.values()), color=look.colour, linestyle=look.line, label=name,
                    marker=look.marker, markersize=4, linewidth=1.4,
                )  # fmt: skip
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("tokens of the prompt")
        axes.xaxis.set_major_formatter("{x:g}")
    headed(left, "Tokens per forward")
    left.set_ylim(0, None)
    headed(right, "Drafts accepted, of all looked at")
    right.set_ylim(0, 1.03)
    legend(figure, list(handles.values()))
    return figure


def _by_length(records: list[Record]) -> dict[float, list[Record]]:
    """Prompts of about one length together, by the median of their lengths."""
    found: dict[int, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.answer.prompt_tokens):
        found.setdefault(round(2 * math.log2(max(1, record.answer.prompt_tokens))), []).append(record)
    return {statistics.median(record.answer.prompt_tokens for record in group): group for group in found.values()}


def _pace(records: list[Record]) -> float | None:
    forwards = sum(record.answer.forwards or 0 for record in records)
    return sum(record.answer.count for record in records) / forwards if forwards else None


def _accepted(records: list[Record]) -> float | None:
    drafted = sum(sum(record.answer.drafted_by_depth) for record in records)
    return sum(sum(record.answer.accepted_by_depth) for record in records) / drafted if drafted else None
