"""What all plots of a bench share: colours, an empty figure, and how it becomes a PNG or an SVG for a page.

Lines and letters are drawn in a few named colours that the page replaces by its own, so that one drawing serves light
and dark.
"""

import io
import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from stridelm.bench.records import Report
from stridelm.params import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's, which colour-blind people can tell apart; their black and yellow drown on a dark or a light page."""
INK, GREY, GRID, PAPER = "#1f2328", "#6e7781", "#d0d7de", "#ffffff"
_OF_PAGE = {INK: "var(--ink)", GREY: "var(--grey)", GRID: "var(--grid)", PAPER: "var(--paper)"}
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":", "-.")
MISSING = "the pictures need matplotlib, which is not installed (pip install 'stridelm[bench]')"

_POINTS_A_REM = 11.6
"""How large a picture stands in a page at most: its letters are then a little smaller than the page's."""
SETTINGS: dict[Any, Any] = {
    "text.parse_math": False,  # a dollar in a name is a dollar
    "svg.fonttype": "none",  # letters stay letters: they can be read aloud, searched and marked
    "svg.hashsalt": "stridelm",  # the same figures give the same file
}


def require_matplotlib() -> None:
    """Raises InputError without it. Worth a call before a long run whose pictures are wanted."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(MISSING) from error


def blank(height: float, width: float = 10.0) -> "Figure":
    """An empty figure of so many inches."""
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor=PAPER)


def panels(figure: "Figure", count: int, columns: int) -> list["Axes"]:
    """So many axes in rows of so many columns, all alike; the places that stay empty are not drawn."""
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
    """Another one for every time round the colours."""


def looks(report: Report) -> dict[str, Look]:
    """The baseline is in ink, since others are held against it."""
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
    """An <svg> to stand in a page: its ids begin with its name, its colours are the page's, and nothing points out."""
    import matplotlib

    content = io.StringIO()
    nothing = {"Creator": None, "Date": None, "Format": None, "Type": None}
    with matplotlib.rc_context(SETTINGS):
        figure.savefig(content, format="svg", metadata=nothing, transparent=True)
    drawn = content.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    # Its rule for all elements would reach the whole page; the page has it for pictures only.
    drawn = re.sub(r"<style type=\"text/css\">.*?</style>", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r"(\sid=\"|url\(#|href=\"#)", rf"\g<1>{name}-", drawn)
    view = re.search(r'viewBox="0 0 ([\d.]+) [\d.]+"', drawn)
    assert view, "matplotlib writes a viewBox"
    size = f'style="max-width:{float(view[1]) / _POINTS_A_REM:.1f}rem"'
    opening = f'<svg role="img" aria-labelledby="{name}-name" {size} {view[0]}>'
    opening += f'<title id="{name}-name">{escape(title)}</title>'
    drawn = opening + drawn[drawn.index(">") + 1 :]
    for own, of_page in _OF_PAGE.items():
        drawn = drawn.replace(own, of_page)
    return drawn
