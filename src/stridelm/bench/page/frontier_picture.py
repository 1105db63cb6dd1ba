"""The picture that `stridelm tune` draws: speed against agreement, and the frontier."""

import io
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from stridelm.files import write_bytes
from stridelm.profile import Measured, label
from stridelm.settings import DecodeSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_EXACT_COLOUR, _LOSSY_COLOUR, _FRONTIER_COLOUR = "#0072b2", "#d55e00", "#009e73"  # Okabe and Ito's


def frontier(measured: list[Measured]) -> list[Measured]:
    """The candidates that no other beats in both speed and agreement, from the lowest agreement to the highest."""
    best: list[Measured] = []
    for each in sorted(measured, key=lambda each: (each.agreement, each.speed_up), reverse=True):
        if not best or each.speed_up > best[-1].speed_up:
            best.append(each)
    return best[::-1]


def draw(file: Path, measured: list[Measured], chosen: Measured, title: str) -> bool:
    """Draw speed against agreement. Candidates that agree in full would hide each other: they are drawn side by side.

    Returns False without matplotlib; then an older picture is removed, since it would not match the new profile.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        file.unlink(missing_ok=True)
        return False
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots()
    places = _places(measured)
    for exact, marker, colour in ((True, "o", _EXACT_COLOUR), (False, "^", _LOSSY_COLOUR)):
        part = [each for each in measured if each.exact == exact]
        low, high = [each.speed_up - each.low for each in part], [each.high - each.speed_up for each in part]
        where = [places[each.settings] for each in part], [each.speed_up for each in part]
        name = "exact" if exact else "not exact"
        axes.errorbar(*where, yerr=(low, high), fmt=marker, color=colour, elinewidth=0.8, capsize=2, label=name)
    best = [(places[each.settings], each.speed_up) for each in frontier(measured)]
    line = {"color": _FRONTIER_COLOUR, "linewidth": 1.2, "zorder": 1, "drawstyle": "steps-pre"}
    axes.plot(*zip(*best, strict=True), label="frontier: the fastest that agrees so much or more", **line)
    ring = {"s": 170, "facecolors": "none", "edgecolors": "black", "linewidths": 1.5, "zorder": 3}
    axes.scatter([places[chosen.settings]], [chosen.speed_up], label=f"chosen: {label(chosen.settings)}", **ring)
    axes.axhline(1, color="grey", linewidth=0.8, linestyle=":")
    axes.set_title(title, fontsize=10)
    axes.set(ylabel="speed-up over one token per forward (median, quartiles)")
    axes.set_xlabel("agreement: part of the plain answer before the first other token")
    _set_limits(axes, measured, places)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.draw_without_rendering()  # computes the layout, which placing labels needs
    _label_points(axes, {label(each.settings): (places[each.settings], each) for each in measured})
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write_bytes(file, picture.getvalue())
    return True


def _places(measured: list[Measured]) -> dict[DecodeSettings, float]:
    """Each candidate's x: its agreement or, if that is 1, beyond 1 side by side, the fastest first."""
    full = sorted((each for each in measured if each.agreement == 1), key=lambda each: -each.speed_up)
    span = 1.05 * max(0.02, 1 - min(each.agreement for each in measured))
    row = {each.settings: 1 + span * (number + 1) / (len(full) + 1) for number, each in enumerate(full)}
    return {each.settings: row.get(each.settings, each.agreement) for each in measured}


def _set_limits(axes: "Axes", measured: list[Measured], places: dict[DecodeSettings, float]) -> None:
    from matplotlib.ticker import MaxNLocator

    least = min(each.agreement for each in measured)
    span = max(0.02, 1 - least)
    right = 1 + 1.05 * span
    axes.set_xlim(1 if least == 1 else least - 0.12 * span, right)
    ticks = [tick for tick in MaxNLocator(6).tick_values(least, 1) if least - 0.1 * span <= tick < 1 - 0.04 * span]
    middle = (1 + right) / 2
    axes.set_xticks([*ticks, middle], [*(f"{tick:.3g}" for tick in ticks), "1 (side by side)"])
    axes.axvspan(1, right, color="black", alpha=0.05, linewidth=0)
    # The labels of candidates that agree in full are vertical, above them.
    tallest = max(each.high for each in measured if places[each.settings] > 1)
    axes.set_ylim(0, max(1.1 * max(each.high for each in measured), tallest / 0.66))


_DIRECTIONS = ((1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1))
Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""


def _label_points(axes: "Axes", points: dict[str, tuple[float, Measured]]) -> None:
    """A name at every point: vertical above points that are side by side, otherwise where there is room, with a line to
    the point."""
    scale = 72 / axes.figure.dpi  # from pixels to points, the unit of font sizes

    def at(x: float, y: float) -> tuple[float, float]:
        return tuple(axes.transData.transform((x, y)) * scale)

    ends = [(at(x, each.low), at(x, each.high)) for x, each in points.values()]
    taken = [(low[0] - 4, low[1] - 4, high[0] + 4, high[1] + 4) for low, high in ends]
    frame = (*at(axes.get_xlim()[0], 0), *at(1, axes.get_ylim()[1]))
    text = {"textcoords": "offset points", "fontsize": 7.5}
    for name, (x, each) in points.items():
        if x > 1:
            axes.annotate(name, (x, each.high), (0, 5), rotation=90, ha="center", va="bottom", **text)
            continue
        right, up, distance = free_place(at(x, each.speed_up), 4.1 * len(name), frame, taken)
        side = {1: "left", 0: "center", -1: "right"}[right]
        back = {"arrowstyle": "-", "color": "grey", "linewidth": 0.5, "relpos": ((1 - right) / 2, 0.5)}
        offset = (distance * right, distance * up)
        axes.annotate(
            name, (x, each.speed_up), offset, ha=side, va="center", arrowprops=back if distance > 8 else None, **text
        )


def free_place(point: tuple[float, float], width: float, frame: Box, taken: list[Box]) -> tuple[int, int, int]:
    """The nearest free place for a label of this width, as right, up and distance from the point. It is added to
    `taken`."""
    for distance, (right, up) in product((8, 18, 30, 44, 60, 80, 105), _DIRECTIONS):
        left, low = point[0] + distance * right - width * (1 - right) / 2, point[1] + distance * up - 4.5
        box = (left, low, left + width, low + 9)
        inside = frame[0] <= box[0] and box[2] <= frame[2] and frame[1] <= box[1] and box[3] <= frame[3]
        if inside and not any(_overlap(box, other) for other in taken):
            taken.append(box)
            return right, up, distance
    return 1, 0, 8


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
