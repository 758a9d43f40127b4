"""Draws the points of variants in a chart.

The drawing has the line through the frontier, the marks, the error bars and the names.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from qkvary.reports import label_placement, svg
from qkvary.reports.variant_styles import Family, mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a chart."""

    name: str
    family: Family
    x: float
    y: float
    bar: tuple[float, float] | None = None
    """The ends of the bar through the point, as values."""
    on_frontier: bool = False
    hollow: bool = False


def draw_points(plot: svg.Plot, points: Sequence[Point]) -> list[Markup]:
    """Draw points and the line through those on the frontier, with names that cover nothing."""
    front = sorted((point.x, point.y) for point in points if point.on_frontier)
    corners = svg.staircase([plot.point(*one) for one in front], plot.across.end)
    bars: list[Markup] = []
    marks: list[Markup] = []
    obstacles = label_placement.boxes_along(corners)
    places = separate([plot.point(point.x, point.y) for point in points])
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


def separate(places: Sequence[svg.Point]) -> list[svg.Point]:
    """Move points that cover each other a few pixels to the right."""
    moved: list[svg.Point] = []
    for left, y in places:
        x = left
        while any(abs(x - other) < 6 and abs(y - height) < 7 for other, height in moved):
            x += 4
        moved.append((x, y))
    return moved
