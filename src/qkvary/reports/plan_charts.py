"""The charts of a plan as inline SVG: cache against context, and published quality."""

import textwrap
from collections.abc import Iterator

from markupsafe import Markup

from qkvary.arch.published_quality import BASELINE
from qkvary.planning.curves import CacheCurves, PublishedPoint, QualityPoints
from qkvary.reports import svg
from qkvary.reports.charts import Axis, Line, Point, line_chart, point_chart
from qkvary.reports.variant_styles import family_of
from qkvary.text import numbers
from qkvary.text.names import clip, listed, short

NAME_LENGTH = 15
"""Maximum number of letters per line of a name."""
FAR = 10.0
"""Largest change that is drawn to scale, in percent. Larger changes are drawn at the edge."""


def cache_chart(data: CacheCurves) -> svg.Drawing:
    """Draw the size of one user's cache against the length of the context.

    Both axes are logarithmic and are labelled with powers of two.
    """
    held = [value for curve in data.curves for _, value in curve.points]
    low, high = min([*held, data.memory_bytes]) / 1.3, max(held) * 1.3
    # The device and its two lines of words take a sixth of the height.
    high = max(high, data.memory_bytes * (data.memory_bytes / low) ** 0.2)
    size = numbers.data_size
    free = max(data.free_bytes, 0)
    at_context = [
        next(point for point in curve.points if point[0] >= data.context) for curve in data.curves
    ]

    def draw_memory(plot: svg.Plot) -> Iterator[Markup]:
        left, top, right, bottom = plot.area
        y, x = plot.up(data.memory_bytes), plot.across(data.context)
        yield plot.cover("taken", plot.up(max(free, low)))
        yield svg.line((x, top), (x, bottom), "reference")
        yield svg.line((left, y), (right, y), "reference")
        device = f"{short(data.device, 26)}: {size(data.memory_bytes)}"
        yield svg.text(left + 5, y - 18, device, "tick strong over")
        words = f"{size(free) if free else 'nothing'} left for the cache"
        yield svg.text(left + 5, y - 5, words, "tick over")

    lines = [
        Line(
            name=[
                text for name in curve.names for text in textwrap.wrap(short(name, 40), NAME_LENGTH)
            ],
            family=family_of(curve.label, BASELINE),
            points=curve.points,
            marked=marked,
        )
        for curve, marked in zip(data.curves, at_context, strict=True)
    ]
    values = "; ".join(
        f"{listed(curve.names)} {size(value)}"
        for curve, (_, value) in zip(data.curves, at_context, strict=True)
    )
    description = (
        f"Cache of one user at {data.context:,} tokens: {values}. {data.device} has "
        f"{size(data.memory_bytes)}, of which {size(free)} are left after the weights."
    )
    return line_chart(
        lines,
        Axis(
            title=f"context in tokens; {numbers.tokens(data.context)} requested",
            low=data.low,
            high=data.high,
            write=numbers.tokens,
            logarithmic=True,
            binary=True,
        ),
        Axis(
            title=f"cache of one user, {data.cache.name}",
            low=low,
            high=high,
            write=size,
            ticks=6,
            logarithmic=True,
            binary=True,
        ),
        size=(400, 300),
        title=f"Cache of one user against context, stored in {data.cache.name}",
        description=clip(description, 1200),
        draw_below=draw_memory,
    )


def quality_chart(data: QualityPoints) -> svg.Drawing:
    """Draw the published changes in perplexity against cache size, with frontier and intervals."""
    least = min(point.share for point in data.points)
    near = [point for point in data.points if point.change_percent <= FAR]
    low, high = svg.padded([value for one in near for value in (one.low, one.high)], 0.06)
    high += 0.0 if len(near) == len(data.points) else (high - low) * 0.12
    values = "; ".join(
        f"{point.variant} {write_share(point.share)} of the cache, {point.change_percent:+.1f} %, "
        + ("on the frontier" if point.status == "frontier" else "dominated")
        for point in data.points
    )
    return point_chart(
        [_point(point, high) for point in data.points],
        Axis(
            title=f"cache per token, as a share of {BASELINE}'s",
            low=least / 1.5,
            high=1.5,
            write=write_share,
            ticks=7,
            logarithmic=True,
            binary=True,
        ),
        Axis(
            title="change in perplexity in % (lower is better)",
            low=low,
            high=high,
            write=numbers.tick,
        ),
        title=f"Published change in perplexity against cache size, {data.size} networks",
        description=clip(f"{values}.", 1200),
    )


def _point(point: PublishedPoint, high: float) -> Point:
    """Return a point, clipped to the chart.

    If the point was clipped, the name of the point states the true value.
    """
    is_dominated = point.status != "frontier"
    name = f"{point.variant} †" if is_dominated else point.variant
    is_far = point.change_percent > FAR
    return Point(
        name=f"{name} {point.change_percent:+.1f} % ↑" if is_far else name,
        family=family_of(point.variant, BASELINE),
        x=point.share,
        y=high if is_far else point.change_percent,
        bar=(point.low, point.high) if point.high > point.low and not is_far else None,
        on_frontier=not is_dominated,
        hollow=is_dominated,
    )


def write_share(share: float) -> str:
    """Write a share of the cache: 1, 1/2, 1/32."""
    return "1" if share >= 1 else f"1/{1 / share:g}"
