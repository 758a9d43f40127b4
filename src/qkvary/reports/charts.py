"""Draws two kinds of charts with the same axes: named lines and named points.

A line or point has the colour of its variant's family; dashes distinguish lines of one family. The
names make the charts readable without colours.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from qkvary.reports import label_placement, svg
from qkvary.reports.variant_styles import Family, mark

_DASHES = ("", "6 3", "2 3", "8 2 2 2", "12 4", "1 4")
"""The dash patterns of the first, second, ... line of a family."""
_LEFT, _TOP, _BOTTOM = 54.0, 26.0, 34.0
"""Margins in pixels; the right one has room for the names."""
_LEADER = 14.0
"""Distance in pixels from the end of a line to its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart."""

    name: Sequence[str]
    """The label at the right end of the line, as lines of text."""
    family: Family
    points: Sequence[svg.Point]
    """The values (x, y), from left to right."""
    band: Sequence[svg.Point] = ()
    """The outline of a band around the line, as values (x, y)."""
    marked: svg.Point | None = None
    """The point of the line that gets a mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of a chart."""

    title: str
    low: float
    high: float
    write: Callable[[float], str]
    ticks: int = 5
    """The approximate number of ticks."""
    logarithmic: bool = False
    binary: bool = False
    """Whether the ticks are powers of two."""

    def scale(self, start: float, end: float) -> svg.Scale:
        """Return the map from values to positions between two pixels."""
        return svg.Scale(
            low=self.low,
            high=self.high,
            start=start,
            end=end,
            logarithmic=self.logarithmic,
            binary=self.binary,
        )


def line_chart(
    lines: Sequence[Line],
    across: Axis,
    up: Axis,
    *,
    size: tuple[float, float],
    title: str,
    description: str,
    draw_below: Callable[[svg.Plot], Iterable[Markup]] = lambda _: (),
) -> svg.Drawing:
    """Draw lines with their names, on top of the elements from ``draw_below``.

    If the names need more room, the chart is taller than ``size``.
    """
    widths = (label_placement.text_width(text) for line in lines for text in line.name)
    rows = sum(len(line.name) for line in lines)
    width, height = size[0], max(size[1], _TOP + rows * label_placement.HEIGHT + _BOTTOM)
    right, bottom = width - max(widths, default=0.0) - _LEADER - 6, height - _BOTTOM
    plot = svg.Plot(across.scale(_LEFT, right), up.scale(bottom, _TOP))
    parts = [
        svg.y_axis(plot.up, _LEFT, right, up.write, up.ticks),
        svg.x_axis(plot.across, bottom, across.write, across.ticks),
        *draw_below(plot),
        svg.text(8, 13, up.title, "axis-title"),
        svg.text(right, height - 3, across.title, "axis-title end"),
        *_draw_lines(lines, plot),
    ]
    return svg.Drawing(
        width=width, height=height, title=title, description=description, parts=tuple(parts)
    )


def _draw_lines(lines: Sequence[Line], plot: svg.Plot) -> list[Markup]:
    _, top, right, bottom = plot.area
    line_height = label_placement.HEIGHT
    paths = [[plot.point(*point) for point in line.points] for line in lines]
    wanted = [
        (path[-1][1], len(line.name) * line_height) for line, path in zip(lines, paths, strict=True)
    ]
    middles = label_placement.stack(wanted, top - 6, bottom + 6)
    seen = Counter[str]()
    bands: list[Markup] = []
    curves: list[Markup] = []
    names: list[Markup] = []
    for line, path, middle in zip(lines, paths, middles, strict=True):
        key = line.family.key
        if len(path) > 1 and line.band:
            outline = [plot.point(*point) for point in line.band]
            bands.append(svg.path(outline, f"band f-{key}", closed=True))
        curves.append(svg.path(path, f"curve f-{key}", dash=_DASHES[seen[key] % len(_DASHES)]))
        seen[key] += 1
        curves.append(svg.line(path[-1], (right + _LEADER, middle), "leader"))
        if line.marked:
            names.append(mark(line.family, *plot.point(*line.marked), 4))
        first = middle - (len(line.name) - 1) * line_height / 2 + 4
        names.extend(
            svg.text(right + _LEADER + 3, first + row * line_height, text, f"name t-{key}")
            for row, text in enumerate(line.name)
        )
    # Bands are drawn below all lines, marks and names above them.
    return [*bands, *curves, *names]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a chart."""

    name: str
    family: Family
    x: float
    y: float
    bar: tuple[float, float] | None = None
    """The lower and the upper end of the error bar, as values of y."""
    on_frontier: bool = False
    hollow: bool = False


def point_chart(
    points: Sequence[Point], across: Axis, up: Axis, *, title: str, description: str
) -> svg.Drawing:
    """Draw points, and the line through the points on the frontier. Names do not overlap."""
    right, bottom = 390.0, 286.0
    plot = svg.Plot(across.scale(_LEFT, right), up.scale(bottom, _TOP))
    parts = [
        svg.y_axis(plot.up, _LEFT, right, up.write, up.ticks),
        svg.x_axis(plot.across, bottom, across.write, across.ticks),
        svg.text(10, 13, up.title, "axis-title"),
        svg.text(right, bottom + 38, across.title, "axis-title end"),
        *_draw_points(plot, points),
    ]
    return svg.Drawing(
        width=400, height=330, title=title, description=description, parts=tuple(parts)
    )


def _draw_points(plot: svg.Plot, points: Sequence[Point]) -> list[Markup]:
    front = sorted((point.x, point.y) for point in points if point.on_frontier)
    corners = svg.staircase([plot.point(*one) for one in front], plot.across.end)
    bars: list[Markup] = []
    marks: list[Markup] = []
    obstacles = label_placement.boxes_along(corners)
    places = _separate([plot.point(point.x, point.y) for point in points])
    for point, (x, y) in zip(points, places, strict=True):
        if point.bar:
            ends = plot.up(point.bar[0]), plot.up(point.bar[1])
            bars.extend(svg.whisker(x, *ends, 4, f"whisker f-{point.family.key}"))
        marks.append(mark(point.family, x, y, 5, hollow=point.hollow))
        obstacles.append((x - 7, y - 7, x + 7, y + 7))
    spots = [
        label_placement.Spot(text=point.name, x=x, y=y)
        for point, (x, y) in zip(points, places, strict=True)
    ]
    left, top, right, bottom = plot.area
    labels = label_placement.place(spots, obstacles, (left + 2, top, right, bottom - 3))
    leaders: list[Markup] = []
    names: list[Markup] = []
    for point, spot, label in zip(points, spots, labels, strict=True):
        if label is not None:
            names.append(svg.text(label.x, label.y, label.text, f"name t-{point.family.key}"))
            if label.leader:
                leaders.append(svg.line((spot.x, spot.y), label.leader, "leader"))
    return [svg.path(corners, "frontier"), *bars, *leaders, *marks, *names]


def _separate(places: Sequence[svg.Point]) -> list[svg.Point]:
    """Move points that cover each other a few pixels to the right."""
    moved: list[svg.Point] = []
    for left, y in places:
        x = left
        while any(abs(x - other) < 6 and abs(y - height) < 7 for other, height in moved):
            x += 4
        moved.append((x, y))
    return moved
