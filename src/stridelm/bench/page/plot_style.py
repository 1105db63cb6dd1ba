"""What all plots of a bench share: colours, an empty figure, and its conversion to a PNG or an SVG for a page.

Lines and text are drawn in a few named colours, which the page replaces by its own, so that one drawing works in light
and dark mode.
"""

import io
import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from stridelm.bench.records import Report
from stridelm.light import install_command
from stridelm.params import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's palette, which colour-blind people can tell apart, without black and yellow, which have too little
contrast on a dark or a light page."""
INK, GREY, GRID, PAPER = "#1f2328", "#6e7781", "#d0d7de", "#ffffff"
_PAGE_COLOURS = {INK: "var(--ink)", GREY: "var(--grey)", GRID: "var(--grid)", PAPER: "var(--paper)"}
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":", "-.")
MISSING = f"the pictures need matplotlib, which is not installed ({install_command('bench')})"

_POINTS_PER_REM = 11.6
"""Sets the maximum size of a picture in a page: its text is then a little smaller than the page's."""
SETTINGS: dict[Any, Any] = {
    "text.parse_math": False,  # a dollar sign in a name is no formula
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and selected
    "svg.hashsalt": "stridelm",  # the same figures give the same file
}


def require_matplotlib() -> None:
    """Raises InputError without matplotlib. Call it before a long run that shall draw pictures."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(MISSING) from error


def blank(height: float, width: float = 10.0) -> "Figure":
    """An empty figure, sizes in inches."""
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor=PAPER)


def panels(figure: "Figure", count: int, columns: int) -> list["Axes"]:
    """`count` axes of the same style in rows of `columns`; unused places of the last row are not drawn."""
    rows = -(-count // columns)
    grid = figure.subplots(rows, columns, squeeze=False)
    found = [axes for row in grid for axes in row]
    for axes in found[count:]:
        axes.remove()
    for axes in found[:count]:
        plain(axes)
    return found[:count]


def plain(axes: "Axes") -> None:
    """Two thin lines instead of a frame, and a faint grid behind everything."""
    axes.set_facecolor(PAPER)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=INK, labelsize=8)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=INK, fontsize=9)


def headed(axes: "Axes", title: str) -> None:
    axes.set_title(title, fontsize=9.5, color=INK)


def legend(figure: "Figure", handles: list, columns: int = 4) -> None:
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8, frameon=False, labelcolor=INK)


def colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def marker(place: int) -> str:
    return MARKERS[place % len(MARKERS)]


@dataclass(frozen=True, slots=True)
class Look:
    """How a subject is drawn, the same in every plot."""

    colour: str
    marker: str
    line: str
    """Another style each time that the colours start over."""


def looks(report: Report) -> dict[str, Look]:
    """The look of every subject. The baseline, which others are compared with, has the colour of text."""
    named = [*report.subjects, *(record.subject for record in report.records)]
    others = [name for name in dict.fromkeys(named) if name != report.baseline]
    found = {
        name: Look(colour(place), marker(place), LINES[place // len(COLOURS) % len(LINES)])
        for place, name in enumerate(others)
    }
    return found | {report.baseline: Look(INK, ".", "-")}


def as_png(figure: "Figure") -> bytes:
    import matplotlib

    content = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        figure.savefig(content, format="png", dpi=150)
    return content.getvalue()


def as_svg(figure: "Figure", name: str, title: str) -> str:
    """An <svg> to embed in a page: its ids begin with `name`, its colours are the page's, and it links to nothing."""
    import matplotlib

    content = io.StringIO()
    nothing = {"Creator": None, "Date": None, "Format": None, "Type": None}
    with matplotlib.rc_context(SETTINGS):
        figure.savefig(content, format="svg", metadata=nothing, transparent=True)
    drawn = content.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    # matplotlib's style rule for all elements would affect the whole page; the page's own style limits it to pictures.
    drawn = re.sub(r"<style type=\"text/css\">.*?</style>", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r"(\sid=\"|url\(#|href=\"#)", rf"\g<1>{name}-", drawn)
    view = re.search(r'viewBox="0 0 ([\d.]+) [\d.]+"', drawn)
    assert view, "matplotlib writes a viewBox"
    size = f'style="max-width:{float(view[1]) / _POINTS_PER_REM:.1f}rem"'
    opening = f'<svg role="img" aria-labelledby="{name}-name" {size} {view[0]}>'
    opening += f'<title id="{name}-name">{escape(title)}</title>'
    drawn = opening + drawn[drawn.index(">") + 1 :]
    for own, of_page in _PAGE_COLOURS.items():
        drawn = drawn.replace(own, of_page)
    return drawn
