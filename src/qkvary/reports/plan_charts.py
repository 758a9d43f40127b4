"""The charts of a plan as inline SVG: cache against context, users against memory, quality.

Only positions are computed here. Dashes and the names at their ends distinguish the lines, so that
no reader needs the colours.
"""

import dataclasses
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from qkvary.arch.published_quality import BASELINE
from qkvary.planning.curves import CacheCurves, Curve, QualityPoints, UserCurves
from qkvary.reports import label_placement, svg
from qkvary.reports.variant_styles import Family, family_of, mark, name_points
from qkvary.text import numbers, units
from qkvary.text.names import clip, listed, short

WIDTH = 400.0
LINE = 13.0
"""Height of a line of text, in pixels."""
NAME_LENGTH = 16
"""Maximum number of letters per line of a name."""
DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2", "1 4", "12 4", "4 2 1 2", "1 2", "10 2 1 2 1 2")
"""The dash patterns of the rows of a plan; the first is solid, and more rows repeat them."""
FAR = 10.0
"""Points with a larger change, in percent, are drawn at the edge of the chart, not to scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndName:
    """The names at the end of a line, one below the other."""

    lines: tuple[str, ...]
    """The lines of text."""
    y: float
    """The vertical middle of the lines, in pixels."""

    @property
    def first(self) -> float:
        """The middle of the first line."""
        return self.y - (len(self.lines) - 1) * LINE / 2


def wrap_names(names: Sequence[str]) -> tuple[str, ...]:
    """Break the names of a curve into lines that fit next to a chart."""
    kept = (short(name, 60).replace(" *", "\N{NO-BREAK SPACE}*") for name in names)
    broken = (textwrap.wrap(name, NAME_LENGTH) for name in kept)
    return tuple(short(piece, NAME_LENGTH + 4) for pieces in broken for piece in pieces)


def end_names(
    curves: Sequence[Curve], up: Callable[[float], float], top: float, bottom: float
) -> list[EndName]:
    """Place the names of curves at their ends, without overlap."""
    written = [wrap_names(curve.names) for curve in curves]
    wanted = [
        (up(curve.points[-1][1]), len(lines) * LINE + 2)
        for curve, lines in zip(curves, written, strict=True)
    ]
    middles = label_placement.stack(wanted, top, bottom)
    return [EndName(lines=lines, y=y) for lines, y in zip(written, middles, strict=True)]


def cache_chart(data: CacheCurves, *, decimal: bool = False) -> svg.Drawing:
    """Draw the cache of one user against the context, both in doublings."""
    height, area = _area(data.curves)
    across = svg.Scale(
        low=data.low,
        high=data.high,
        start=area[0],
        end=area[2],
        logarithmic=True,
        binary=True,
    )
    low, high = cache_range(data)
    up = svg.Scale(
        low=low, high=high, start=area[3], end=area[1], logarithmic=True, binary=not decimal
    )
    size = partial(units.data_size, decimal=decimal)
    at_context = [_value_at(curve, data.context) for curve in data.curves]
    parts = [
        _occupied(up(max(data.free_bytes, low)), area),
        svg.y_axis(up, area[0], area[2], size, 6),
        svg.x_axis(across, area[3], units.tokens, _ticks(area, 40)),
        svg.text(8, 13, f"cache of one user, {data.cache.name}", "axis-title"),
        svg.text(area[2], height - 6, "context in tokens (1k = 1,024)", "axis-title end"),
        *_vertical(data.context, f"requested: {units.tokens(data.context)}", across, area, 1),
        *_longest(data, across, area),
        *_memory_line(data, across, up, area, size),
        *_lines(data.curves, across, up, area),
        *_marks(data.curves, data.context, at_context, across, up),
    ]
    values = [
        f"{listed(curve.names)} {size(value)}"
        for curve, value in zip(data.curves, at_context, strict=True)
    ]
    description = (
        f"Cache of one user at {data.context:,} tokens: {'; '.join(values)}. "
        f"{data.device} has {size(data.memory_bytes)}, of which "
        f"{size(max(data.free_bytes, 0))} are left after the weights."
    )
    title = f"Cache of one user against context, stored in {data.cache.name}"
    return svg.Drawing(
        width=WIDTH,
        height=height,
        title=title,
        description=clip(description, 1200),
        parts=tuple(parts),
    )


def users_chart(data: UserCurves, *, decimal: bool = False) -> svg.Drawing:
    """Draw users of one device against its memory, as steps, both in doublings."""
    height, area = _area(data.curves)
    across = svg.Scale(
        low=data.low,
        high=data.high,
        start=area[0],
        end=area[2],
        logarithmic=True,
        binary=not decimal,
    )
    low, high = users_range(data)
    up = svg.Scale(low=low, high=high, start=area[3], end=area[1], logarithmic=True)
    size = partial(units.data_size, decimal=decimal)
    at_device = data.users_at(data.memory_bytes)
    memory = f"{short(data.device, 26)}: {size(data.memory_bytes)}"
    parts = [
        svg.y_axis(up, area[0], area[2], numbers.tick, 5),
        svg.x_axis(across, area[3], size, _ticks(area, 62)),
        svg.text(8, 13, f"users of {data.context:,} tokens, {data.cache.name}", "axis-title"),
        svg.text(area[2], height - 6, "memory of the device", "axis-title end"),
        *_vertical(data.memory_bytes, memory, across, area, 1),
        *_lines([_from_axis(curve, data.low) for curve in data.curves], across, up, area),
        *_marks(data.curves, data.memory_bytes, at_device, across, up),
    ]
    values = [
        f"{listed(curve.names)} {users:,}"
        for curve, users in zip(data.curves, at_device, strict=True)
    ]
    description = (
        f"Users of {data.context:,} tokens with one copy of the model on {data.device} "
        f"({size(data.memory_bytes)}): {'; '.join(values)}."
    )
    title = f"Users of one device against its memory, cache in {data.cache.name}"
    return svg.Drawing(
        width=WIDTH,
        height=height,
        title=title,
        description=clip(description, 1200),
        parts=tuple(parts),
    )


def quality_chart(data: QualityPoints) -> svg.Drawing:
    """Draw the papers' change of perplexity against cache: frontier, intervals, an estimate."""
    height = 330.0
    area = (54.0, 26.0, WIDTH - 10, height - 44)
    least = min(point.share for point in data.points)
    across = svg.Scale(
        low=least / 1.5, high=1.5, start=area[0], end=area[2], logarithmic=True, binary=True
    )
    low, high = quality_range(data)
    up = svg.Scale(low=low, high=high, start=area[3], end=area[1])
    front = [(across(one.share), up(one.change_percent)) for one in data.frontier]
    corners = svg.staircase(front, area[2])
    parts = [
        svg.y_axis(up, area[0], area[2], numbers.tick),
        svg.x_axis(across, area[3], write_share, 7),
        svg.text(10, 13, "change of perplexity in % (lower is better)", "axis-title"),
        svg.text(
            area[2], height - 6, f"cache per token, as a share of {BASELINE}'s", "axis-title end"
        ),
        svg.path(corners, "frontier"),
        *_published(data, across, up, area, label_placement.boxes_along(corners)),
    ]
    values = "; ".join(
        f"{point.variant} {write_share(point.share)} of the cache, {point.change_percent:+.1f} %, "
        + ("on the frontier" if point.status == "frontier" else "dominated")
        for point in data.points
    )
    title = f"Published change of perplexity against cache, {data.size} networks"
    return svg.Drawing(
        width=WIDTH, height=height, title=title, description=values + ".", parts=tuple(parts)
    )


def cache_range(data: CacheCurves) -> tuple[float, float]:
    """Return the range of bytes of the chart: every curve and the device, with room above."""
    held = [value for curve in data.curves for _, value in curve.points]
    low, high = min([*held, data.memory_bytes]) / 1.3, max(held) * 1.3
    # The device and its two lines of words take a sixth of the height.
    return low, max(high, data.memory_bytes * (data.memory_bytes / low) ** 0.2)


def users_range(data: UserCurves) -> tuple[float, float]:
    """Return the range of users of the chart; it starts below the first user."""
    values = [value for curve in data.curves for _, value in curve.points]
    return (0.8 if min(values) < 4 else min(values) / 2), max(max(values) * 1.5, 4.0)


def quality_range(data: QualityPoints) -> tuple[float, float]:
    """Return the range of changes that are drawn to scale."""
    near = [point for point in data.points if point.change_percent <= FAR]
    low, high = svg.padded([value for one in near for value in (one.low, one.real_high)], 0.06)
    return low, high + (0.0 if len(near) == len(data.points) else (high - low) * 0.12)


def write_share(share: float) -> str:
    """Write a share of the cache: 1, 1/2, 1/32."""
    return "1" if share >= 1 else f"1/{1 / share:g}"


def name_point(variant: str, status: str) -> str:
    """Return the name of a published point, with a dagger if it is dominated."""
    return variant if status == "frontier" else f"{variant} †"


def _area(curves: Sequence[Curve]) -> tuple[float, label_placement.Box]:
    """Return the height of a chart of curves, and the area of its curves."""
    pieces = [wrap_names(curve.names) for curve in curves]
    margin = max(label_placement.text_width(piece) for lines in pieces for piece in lines) + 16
    height = max(300.0, sum(len(lines) for lines in pieces) * (LINE + 7) + 100)
    return height, (62.0, 44.0, WIDTH - min(margin, 130.0), height - 44)


def _ticks(area: label_placement.Box, width: float) -> int:
    """Return the number of values that fit below a chart."""
    return max(2, int((area[2] - area[0]) / width))


def dash_of(curve: Curve) -> str:
    """Return the dash of a curve, the same in every chart of a plan."""
    return DASHES[curve.order % len(DASHES)]


def _occupied(y: float, area: label_placement.Box) -> Markup:
    """Shade the memory that is not free on one device."""
    bottom = min(max(y, area[1]), area[3])
    return svg.element(
        "rect",
        x=area[0],
        y=area[1],
        width=area[2] - area[0],
        height=bottom - area[1],
        class_="taken",
    )


def _vertical(
    value: float, words: str, across: svg.Scale, area: label_placement.Box, row: int
) -> list[Markup]:
    """Draw a vertical line with its words above, within the width of the chart."""
    x, y = across(value), area[1] - 4 - (row - 1) * LINE
    half = label_placement.text_width(words) / 2
    at = min(max(x, half + 4), WIDTH - half - 4)
    return [
        svg.line((x, area[1]), (x, area[3]), "reference"),
        svg.text(at, y, words, "tick strong middle"),
    ]


def _longest(data: CacheCurves, across: svg.Scale, area: label_placement.Box) -> list[Markup]:
    if data.max_tokens is None or not data.low <= data.max_tokens <= data.high:
        return []
    x, words = across(data.max_tokens), f"made for {units.tokens(data.max_tokens)}"
    width = label_placement.text_width(words)
    requested = across(data.context)
    # Names of neighbouring lines need two rows.
    row = 2 if abs(x - requested) < width else 1
    drawn = _vertical(data.max_tokens, words, across, area, row)
    return [svg.line((x, area[1]), (x, area[3]), "limit"), drawn[1]]


def _memory_line(
    data: CacheCurves,
    across: svg.Scale,
    up: svg.Scale,
    area: label_placement.Box,
    size: Callable[[float], str],
) -> list[Markup]:
    y = up(data.memory_bytes)
    free = size(data.free_bytes) if data.free_bytes > 0 else "nothing"
    words = (
        f"{short(data.device, 26)}: {size(data.memory_bytes)}",
        f"{free} left for the cache",
    )
    # The estimate is for bold letters; these are regular.
    width = 0.92 * max(label_placement.text_width(line) for line in words)
    points = [(across(x), up(value)) for curve in data.curves for x, value in curve.points]

    def crossed(box: label_placement.Box) -> int:
        return sum(box[0] <= x <= box[2] and box[1] <= y <= box[3] for x, y in points)

    # At the left above the line, or in the corner, which no rising line reaches.
    left, tall = area[0] + 5, 2 * LINE + 2
    boxes = [(left, max(y - tall - 2, area[1]), left + width, max(y - 2, area[1] + tall))]
    boxes.append((left, area[1] + 2, left + width, area[1] + tall + 2))
    box = min(boxes, key=crossed)
    return [
        svg.line((area[0], y), (area[2], y), "reference"),
        svg.text(box[0], box[1] + LINE - 1, words[0], "tick strong over"),
        svg.text(box[0], box[1] + 2 * LINE - 1, words[1], "tick over"),
    ]


def _lines(
    curves: Sequence[Curve], across: svg.Scale, up: svg.Scale, area: label_placement.Box
) -> list[Markup]:
    """Draw every curve with its names at its end."""
    parts: list[Markup] = []
    names: list[Markup] = []
    ends = end_names(curves, up, area[1], area[3])
    for curve, end in zip(curves, ends, strict=True):
        family = family_of(curve.label, BASELINE)
        places = [(across(x), up(value)) for x, value in curve.points]
        parts.append(svg.path(places, f"curve f-{family.key}", dash=dash_of(curve)))
        parts.append(svg.line(places[-1], (area[2] + 8, end.y), "leader"))
        names.extend(
            svg.text(area[2] + 11, end.first + row * LINE + 4, line, f"name t-{family.key}")
            for row, line in enumerate(end.lines)
        )
    return [*parts, *names]


def _from_axis(curve: Curve, low: float) -> Curve:
    """Return the curve with an additional first step that begins at 0."""
    first = curve.points[0][0]
    return (
        curve if first <= low else dataclasses.replace(curve, points=((first, 0.0), *curve.points))
    )


def _value_at(curve: Curve, place: float) -> float:
    """Return the value of a curve at one of its points."""
    return next(value for x, value in curve.points if x >= place)


def _marks(
    curves: Sequence[Curve],
    place: float,
    values: Sequence[float],
    across: svg.Scale,
    up: svg.Scale,
) -> list[Markup]:
    """Draw a mark on each curve at the requested position."""
    return [
        mark(family_of(curve.label, BASELINE), across(place), up(value), 4)
        for curve, value in zip(curves, values, strict=True)
        if value > 0
    ]


def _published(
    data: QualityPoints,
    across: svg.Scale,
    up: svg.Scale,
    area: label_placement.Box,
    taken: Sequence[label_placement.Box],
) -> list[Markup]:
    parts: list[Markup] = []
    obstacles = list(taken)
    named: list[tuple[label_placement.Spot, Family]] = []
    for point in data.points:
        family = family_of(point.variant, BASELINE)
        x, words = across(point.share), name_point(point.variant, point.status)
        y = up(point.change_percent) if point.change_percent <= FAR else area[1] + 12
        if point.change_percent > FAR:
            parts.append(svg.path([(x - 4, y - 7), (x, y - 13), (x + 4, y - 7)], "reference open"))
            words += f" {point.change_percent:+.1f} %"
        else:
            # Wide enough to be visible next to the mark, which is higher than most intervals.
            if point.high > point.low:
                ends = up(point.low), up(point.high)
                parts.extend(_interval(x, *ends, 8, f"whisker f-{family.key}"))
            if point.real_high > point.real_low:
                ends = up(point.real_low), up(point.real_high)
                parts.extend(_interval(x, *ends, 4, f"estimate f-{family.key}"))
                obstacles.append((x - 5, ends[1] - 2, x + 5, ends[0] + 2))
        parts.append(mark(family, x, y, 5, hollow=point.status != "frontier"))
        half = 9 if point.high > point.low else 7
        obstacles.append((x - half, y - 7, x + half, y + 7))
        named.append((label_placement.Spot(text=words, x=x, y=y), family))
    leaders, names = name_points(named, obstacles, area)
    return [*leaders, *parts, *names]


def _interval(x: float, low: float, high: float, half: float, class_: str) -> list[Markup]:
    ends = [svg.line((x - half, y), (x + half, y), class_) for y in (low, high)]
    return [svg.line((x, low), (x, high), class_), *ends]
