"""One line chart: axes, lines, and the name of each line at its right end.

A line has the colour of its variant's family; dashes distinguish lines of one family. The names
make the chart readable without colours.
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
    """The name at its right end, in lines of text."""
    family: Family
    points: Sequence[svg.Point]
    """Values from left to right."""
    band: Sequence[svg.Point] = ()
    """The outline of a band around the line, as values."""
    marked: svg.Point | None = None
    """The value with a mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of a chart."""

    title: str
    low: float
    high: float
    write: Callable[[float], str]
    ticks: int = 5
    """About how many values are written."""
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
    """Draw lines with their names, above what ``draw_below`` draws.

    If the names need more room, the chart is taller than ``size`` says.
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
