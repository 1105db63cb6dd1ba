"""The plots of a frontier: accuracy against tokens per forward, and tokens per forward before and after adaptation."""

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from stridelm.bench.page.frontier_picture import Box, free_place
from stridelm.bench.page.plot_style import GREY, INK, PAPER, blank, colour, marker, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Name = tuple[float, float, str, str]
"""Where a point is, what it is called and in which colour."""


def frontier(found: dict[str, Any]) -> "Figure":
    """Accuracy against tokens per forward: a colour a conversion, a marker a decoder, full where it is exact."""
    from matplotlib.lines import Line2D

    points: list[dict[str, Any]] = found["points"]
    baseline = found.get("baseline", {}).get("accuracy")
    conversions = list(dict.fromkeys(point["conversion"] for point in points))
    decoders = list(dict.fromkeys(point["decoder"] for point in points))
    figure = blank(5.0)
    (axes,) = panels(figure, 1, 1)
    names: list[_Name] = []
    for (conversion, decoder), group in groupby(
        sorted(points, key=lambda point: (point["conversion"], point["decoder"], point["tokens_per_forward"])),
        key=lambda point: (point["conversion"], point["decoder"]),
    ):
        curve = list(group)
        own = colour(conversions.index(conversion))
        _curve(axes, curve, own, marker(decoders.index(decoder)))
        # Where a dial changes nothing its points lie on one another: one name is enough.
        apart = {(point["tokens_per_forward"], point["accuracy"]): point for point in reversed(curve)}
        names += [(*place, str(point["setting"]), own) for place, point in apart.items()]
    handles = [Line2D([], [], color=colour(place), linewidth=5, label=name) for place, name in enumerate(conversions)]
    handles += [
        Line2D([], [], color=GREY, marker=marker(place), linestyle="", label=name)
        for place, name in enumerate(decoders)
    ]
    handles.append(
        Line2D([], [], color=GREY, marker="o", markerfacecolor=PAPER, linestyle="", label="hollow: not exact")
    )
    if baseline is not None:
        axes.axhline(baseline, color=INK, linewidth=1)
        axes.scatter([1], [baseline], color=INK, s=42, zorder=3)
        names.append((1, baseline, "plain", INK))
        for point in found.get("published", []):
            place = (point["tokens_per_forward"], baseline + point["accuracy_change"])
            axes.scatter(*place, marker="*", s=130, color=GREY, zorder=3)
            names.append((*place, point["name"], INK))
        handles.append(Line2D([], [], color=GREY, marker="*", markersize=10, linestyle="",
                              label="published: their change,\nfrom our baseline"))  # fmt: skip
    axes.set(xlabel="tokens per forward", ylabel="accuracy")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.margins(x=0.08)
    figure.legend(handles=handles, loc="outside right center", fontsize=8, frameon=False, labelcolor=INK)
    _name_points(figure, axes, names)
    return figure


def _name_points(figure: "Figure", axes: "Axes", names: list[_Name]) -> None:
    """A name beside every point, where no line and no other name is."""
    from matplotlib.collections import LineCollection

    figure.draw_without_rendering()  # settles where things are
    scale = 72 / figure.dpi  # from pixels to points, in which letters are measured
    points = [tuple(axes.transData.transform(name[:2]) * scale) for name in names]
    taken: list[Box] = [(x - 5, y - 5, x + 5, y + 5) for x, y in points]
    for line in axes.lines:
        for start, end in pairwise(line.get_transform().transform(line.get_xydata()) * scale):
            steps = 1 + int(max(abs(end - start)) / 4)
            along = [start + (end - start) * step / steps for step in range(steps + 1)]
            taken += [(x - 2, y - 2, x + 2, y + 2) for x, y in along]
    for bars in axes.collections:
        for segment in bars.get_segments() if isinstance(bars, LineCollection) else []:
            (left, low), (right, high) = axes.transData.transform(segment) * scale
            taken.append((left - 3, low, right + 3, high))
    box = axes.bbox
    frame = (scale * box.x0, scale * box.y0, scale * box.x1, scale * box.y1)
    for (x, y, name, own), point in zip(names, points, strict=True):
        right, up, distance = free_place(point, 4.6 * len(name), frame, taken)
        back = {"arrowstyle": "-", "color": GREY, "linewidth": 0.5, "relpos": ((1 - right) / 2, 0.5)}
        axes.annotate(
            name, (x, y), (distance * right, distance * up), textcoords="offset points", va="center", fontsize=7.5,
            ha={1: "left", 0: "center", -1: "right"}[right], color=own, arrowprops=back if distance > 18 else None,
        )  # fmt: skip


def _curve(axes: "Axes", points: list[dict[str, Any]], of_conversion: str, of_decoder: str) -> None:
    """One decoder's settings of one conversion, joined in the order of their pace."""
    across, up = [point["tokens_per_forward"] for point in points], [point["accuracy"] for point in points]
    axes.plot(across, up, color=of_conversion, linewidth=1, alpha=0.6)
    for point in points:
        ends = [[max(0.0, point["accuracy"] - point["low"])], [max(0.0, point["high"] - point["accuracy"])]]
        axes.errorbar(
            point["tokens_per_forward"], point["accuracy"], yerr=ends, color=of_conversion, marker=of_decoder,
            markersize=6, markerfacecolor=of_conversion if point["exact"] else PAPER, elinewidth=0.8, capsize=2,
            zorder=4 if point["exact"] else 3,
        )  # fmt: skip


def adaptation(found: dict[str, Any]) -> "Figure":
    """A line a domain, from tokens per forward before to those after."""
    domains: list[dict[str, Any]] = found["domains"]
    figure = blank(1.2 + 0.45 * len(domains))
    (axes,) = panels(figure, 1, 1)
    for row, each in enumerate(domains):
        own = colour(0 if each["trained_on"] else 1)
        axes.plot([each["before"], each["after"]], [row, row], color=own, linewidth=2.5, alpha=0.5, zorder=2)
        axes.scatter(each["before"], row, s=70, facecolor=PAPER, edgecolor=own, linewidths=1.8, zorder=3)
        axes.scatter(each["after"], row, s=70, color=own, zorder=3)
        side = 1 if each["after"] >= each["before"] else -1
        for value, direction in ((each["before"], -side), (each["after"], side)):
            axes.annotate(f"{value:.2f}", (value, row), (8 * direction, 0), textcoords="offset points", va="center",
                          ha="left" if direction > 0 else "right", fontsize=8, color=INK)  # fmt: skip
    names = [f"{each['domain']} ({'trained on' if each['trained_on'] else 'not trained on'})" for each in domains]
    axes.set_yticks(range(len(domains)), names)
    axes.set_ylim(len(domains) - 0.5, -0.5)
    axes.set_xlabel("tokens per forward")
    axes.margins(x=0.1)
    axes.grid(visible=False, axis="y")
    return figure
