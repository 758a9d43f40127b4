"""The charts of a plan as inline SVG: cache against context, users against memory, quality.

Only positions are computed here. Dashes and the names at their ends distinguish the lines, so that
no reader needs the colours.
"""

import dataclasses
import textwrap
from collections.abc import Callable, Sequence
from functools import partial

from markupsafe import Markup

from qkvary.arch.published_quality import BASELINE
from qkvary.planning.curves import CacheCurves, Curve, QualityPoints, UserCurves
from qkvary.reports import label_placement, svg
from qkvary.reports.variant_styles import Family, family_of, mark, name_points
from qkvary.text import numbers
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


def cache_chart(data: CacheCurves, *, decimal: bool = False) -> svg.Drawing:
    """Draw the cache of one user against the context, both in doublings."""
    held = [value for curve in data.curves for _, value in curve.points]
    low, high = min([*held, data.memory_bytes]) / 1.3, max(held) * 1.3
    # The device and its two lines of words take a sixth of the height.
    high = max(high, data.memory_bytes * (data.memory_bytes / low) ** 0.2)
    plot = _plot(data, (low, high), across_binary=True, up_binary=not decimal)
    left, _, right, bottom = plot.area
    size = partial(numbers.data_size, decimal=decimal)
    at_context = [
        next(value for x, value in curve.points if x >= data.context) for curve in data.curves
    ]
    parts = [
        plot.cover("taken", min(max(plot.up(max(data.free_bytes, low)), plot.up.end), bottom)),
        svg.y_axis(plot.up, left, right, size, 6),
        svg.x_axis(plot.across, bottom, numbers.tokens, _ticks(plot, 40)),
        svg.text(8, 13, f"cache of one user, {data.cache.name}", "axis-title"),
        svg.text(right, bottom + 38, "context in tokens (1k = 1,024)", "axis-title end"),
        *_vertical(plot, data.context, f"requested: {numbers.tokens(data.context)}"),
        *_longest(plot, data),
        *_memory_line(plot, data, size),
        *_lines(plot, data.curves),
        *_marks(plot, data.curves, data.context, at_context),
    ]
    values = [
        f"{listed(curve.names)} {size(value)}"
        for curve, value in zip(data.curves, at_context, strict=True)
    ]
    return _drawing(
        plot,
        parts,
        title=f"Cache of one user against context, stored in {data.cache.name}",
        description=f"Cache of one user at {data.context:,} tokens: {'; '.join(values)}. "
        f"{data.device} has {size(data.memory_bytes)}, of which "
        f"{size(max(data.free_bytes, 0))} are left after the weights.",
    )


def users_chart(data: UserCurves, *, decimal: bool = False) -> svg.Drawing:
    """Draw users of one device against its memory, as steps, both in doublings."""
    users = [value for curve in data.curves for _, value in curve.points]
    # The axis starts below the first user.
    ends = (0.8 if min(users) < 4 else min(users) / 2), max(max(users) * 1.5, 4.0)
    plot = _plot(data, ends, across_binary=not decimal, up_binary=False)
    left, _, right, bottom = plot.area
    size = partial(numbers.data_size, decimal=decimal)
    at_device = data.users_at(data.memory_bytes)
    memory = f"{short(data.device, 26)}: {size(data.memory_bytes)}"
    # A curve whose first step is on the axis begins there, any other at 0.
    curves = [
        dataclasses.replace(curve, points=((first, 0.0), *curve.points))
        if (first := curve.points[0][0]) > data.low
        else curve
        for curve in data.curves
    ]
    parts = [
        svg.y_axis(plot.up, left, right, numbers.tick, 5),
        svg.x_axis(plot.across, bottom, size, _ticks(plot, 62)),
        svg.text(8, 13, f"users of {data.context:,} tokens, {data.cache.name}", "axis-title"),
        svg.text(right, bottom + 38, "memory of the device", "axis-title end"),
        *_vertical(plot, data.memory_bytes, memory),
        *_lines(plot, curves),
        *_marks(plot, data.curves, data.memory_bytes, at_device),
    ]
    values = [
        f"{listed(curve.names)} {users:,}"
        for curve, users in zip(data.curves, at_device, strict=True)
    ]
    return _drawing(
        plot,
        parts,
        title=f"Users of one device against its memory, cache in {data.cache.name}",
        description=f"Users of {data.context:,} tokens with one copy of the model on {data.device} "
        f"({size(data.memory_bytes)}): {'; '.join(values)}.",
    )


def quality_chart(data: QualityPoints) -> svg.Drawing:
    """Draw the papers' change of perplexity against cache: frontier, intervals, an estimate."""
    left, top, right, bottom = 54.0, 26.0, WIDTH - 10, 286.0
    least = min(point.share for point in data.points)
    near = [point for point in data.points if point.change_percent <= FAR]
    low, high = svg.padded([value for one in near for value in (one.low, one.real_high)], 0.06)
    high += 0.0 if len(near) == len(data.points) else (high - low) * 0.12
    plot = svg.Plot(
        svg.Scale(low=least / 1.5, high=1.5, start=left, end=right, logarithmic=True, binary=True),
        svg.Scale(low=low, high=high, start=bottom, end=top),
    )
    front = [plot.point(one.share, one.change_percent) for one in data.frontier]
    corners = svg.staircase(front, right)
    share_title = f"cache per token, as a share of {BASELINE}'s"
    parts = [
        svg.y_axis(plot.up, left, right, numbers.tick),
        svg.x_axis(plot.across, bottom, write_share, 7),
        svg.text(10, 13, "change of perplexity in % (lower is better)", "axis-title"),
        svg.text(right, bottom + 38, share_title, "axis-title end"),
        svg.path(corners, "frontier"),
        *_published(plot, data, label_placement.boxes_along(corners)),
    ]
    values = "; ".join(
        f"{point.variant} {write_share(point.share)} of the cache, {point.change_percent:+.1f} %, "
        + ("on the frontier" if point.status == "frontier" else "dominated")
        for point in data.points
    )
    return _drawing(
        plot,
        parts,
        title=f"Published change of perplexity against cache, {data.size} networks",
        description=f"{values}.",
    )


def _drawing(
    plot: svg.Plot, parts: Sequence[Markup], *, title: str, description: str
) -> svg.Drawing:
    height, words = plot.up.start + 44, clip(description, 1200)
    return svg.Drawing(
        width=WIDTH, height=height, title=title, description=words, parts=tuple(parts)
    )


def write_share(share: float) -> str:
    """Write a share of the cache: 1, 1/2, 1/32."""
    return "1" if share >= 1 else f"1/{1 / share:g}"


def _plot(
    data: CacheCurves | UserCurves, ends: svg.Point, *, across_binary: bool, up_binary: bool
) -> svg.Plot:
    """Return the axes of a chart of curves, with room for their names at the right."""
    pieces = [_wrap_names(curve.names) for curve in data.curves]
    margin = max(label_placement.text_width(piece) for lines in pieces for piece in lines) + 16
    height = max(300.0, sum(len(lines) for lines in pieces) * (LINE + 7) + 100)
    right = WIDTH - min(margin, 130.0)
    scale = partial(svg.Scale, logarithmic=True)
    return svg.Plot(
        scale(low=data.low, high=data.high, start=62.0, end=right, binary=across_binary),
        scale(low=ends[0], high=ends[1], start=height - 44, end=44.0, binary=up_binary),
    )


def _wrap_names(names: Sequence[str]) -> tuple[str, ...]:
    """Break the names of a curve into lines that fit next to a chart."""
    kept = (short(name, 60).replace(" *", "\N{NO-BREAK SPACE}*") for name in names)
    broken = (textwrap.wrap(name, NAME_LENGTH) for name in kept)
    return tuple(short(piece, NAME_LENGTH + 4) for pieces in broken for piece in pieces)


def _ticks(plot: svg.Plot, width: float) -> int:
    """Return the number of values that fit below a chart."""
    return max(2, int((plot.across.end - plot.across.start) / width))


def _vertical(plot: svg.Plot, value: float, words: str, row: int = 1) -> list[Markup]:
    """Draw a vertical line with its words above, within the width of the chart."""
    x, top = plot.point(value, plot.up.high)
    half = label_placement.text_width(words) / 2
    at = min(max(x, half + 4), WIDTH - half - 4)
    return [
        svg.line((x, top), (x, plot.up.start), "reference"),
        svg.text(at, top - 4 - (row - 1) * LINE, words, "tick strong middle"),
    ]


def _longest(plot: svg.Plot, data: CacheCurves) -> list[Markup]:
    if data.max_tokens is None or not data.low <= data.max_tokens <= data.high:
        return []
    x, words = plot.across(data.max_tokens), f"made for {numbers.tokens(data.max_tokens)}"
    # Names of neighbouring lines need two rows.
    is_near = abs(x - plot.across(data.context)) < label_placement.text_width(words)
    drawn = _vertical(plot, data.max_tokens, words, 2 if is_near else 1)
    return [svg.line((x, plot.up.end), (x, plot.up.start), "limit"), drawn[1]]


def _memory_line(plot: svg.Plot, data: CacheCurves, size: Callable[[float], str]) -> list[Markup]:
    left, top, right, _ = plot.area
    y = plot.up(data.memory_bytes)
    free = size(data.free_bytes) if data.free_bytes > 0 else "nothing"
    words = (
        f"{short(data.device, 26)}: {size(data.memory_bytes)}",
        f"{free} left for the cache",
    )
    # The estimate is for bold letters; these are regular.
    width = 0.92 * max(label_placement.text_width(line) for line in words)
    points = [plot.point(*point) for curve in data.curves for point in curve.points]

    def crossed(box: label_placement.Box) -> int:
        return sum(box[0] <= x <= box[2] and box[1] <= y <= box[3] for x, y in points)

    # At the left above the line, or in the corner, which no rising line reaches.
    begin, tall = left + 5, 2 * LINE + 2
    boxes = [(begin, max(y - tall - 2, top), begin + width, max(y - 2, top + tall))]
    boxes.append((begin, top + 2, begin + width, top + tall + 2))
    box = min(boxes, key=crossed)
    return [
        svg.line((left, y), (right, y), "reference"),
        svg.text(box[0], box[1] + LINE - 1, words[0], "tick strong over"),
        svg.text(box[0], box[1] + 2 * LINE - 1, words[1], "tick over"),
    ]


def _lines(plot: svg.Plot, curves: Sequence[Curve]) -> list[Markup]:
    """Draw every curve with its names at its end, one below the other, without overlap."""
    _, top, right, bottom = plot.area
    written = [_wrap_names(curve.names) for curve in curves]
    wanted = [
        (plot.up(curve.points[-1][1]), len(lines) * LINE + 2)
        for curve, lines in zip(curves, written, strict=True)
    ]
    middles = label_placement.stack(wanted, top, bottom)
    parts: list[Markup] = []
    names: list[Markup] = []
    for curve, lines, middle in zip(curves, written, middles, strict=True):
        family = family_of(curve.label, BASELINE)
        places = [plot.point(*point) for point in curve.points]
        dash = DASHES[curve.order % len(DASHES)]
        parts.append(svg.path(places, f"curve f-{family.key}", dash=dash))
        parts.append(svg.line(places[-1], (right + 8, middle), "leader"))
        first = middle - (len(lines) - 1) * LINE / 2
        names.extend(
            svg.text(right + 11, first + row * LINE + 4, line, f"name t-{family.key}")
            for row, line in enumerate(lines)
        )
    return [*parts, *names]


def _marks(
    plot: svg.Plot, curves: Sequence[Curve], place: float, values: Sequence[float]
) -> list[Markup]:
    """Draw a mark on each curve at the requested position."""
    return [
        mark(family_of(curve.label, BASELINE), *plot.point(place, value), 4)
        for curve, value in zip(curves, values, strict=True)
        if value > 0
    ]


def _published(
    plot: svg.Plot, data: QualityPoints, taken: Sequence[label_placement.Box]
) -> list[Markup]:
    up = plot.up
    parts: list[Markup] = []
    obstacles = list(taken)
    named: list[tuple[label_placement.Spot, Family]] = []
    for point in data.points:
        family = family_of(point.variant, BASELINE)
        is_dominated = point.status != "frontier"
        x, y = plot.point(point.share, point.change_percent)
        words = f"{point.variant} †" if is_dominated else point.variant
        if point.change_percent > FAR:
            y = up.end + 12
            parts.append(svg.path([(x - 4, y - 7), (x, y - 13), (x + 4, y - 7)], "reference open"))
            words += f" {point.change_percent:+.1f} %"
        else:
            # Wide enough to be visible next to the mark, which is higher than most intervals.
            if point.high > point.low:
                ends = up(point.low), up(point.high)
                parts.extend(svg.whisker(x, *ends, 8, f"whisker f-{family.key}"))
            if point.real_high > point.real_low:
                ends = up(point.real_low), up(point.real_high)
                parts.extend(svg.whisker(x, *ends, 4, f"estimate f-{family.key}"))
                obstacles.append((x - 5, ends[1] - 2, x + 5, ends[0] + 2))
        parts.append(mark(family, x, y, 5, hollow=is_dominated))
        half = 9 if point.high > point.low else 7
        obstacles.append((x - half, y - 7, x + half, y + 7))
        named.append((label_placement.Spot(text=words, x=x, y=y), family))
    leaders, names = name_points(named, obstacles, plot.area)
    return [*leaders, *parts, *names]
