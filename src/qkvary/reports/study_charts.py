"""The charts of a study as inline SVG: quality against cost, and differences.

Each function takes typed rows of the summary and returns one drawing. Only positions
are computed here.
"""

import math
from collections.abc import Sequence

from markupsafe import Markup

from qkvary.reports import label_placement, svg
from qkvary.reports.charts import Axis, Point, point_chart
from qkvary.reports.study_tables import count_words, metric_name
from qkvary.reports.variant_styles import family_of, mark
from qkvary.studies.results.summary import (
    CostAxis,
    Difference,
    Frontier,
    FrontierPoint,
    ResultTable,
    VariantRow,
)
from qkvary.studies.results.verdicts import is_share
from qkvary.text import numbers
from qkvary.text.names import clip, listed, short

_ROW = 22.0
_NAME_LENGTH = 12
_PANEL_LENGTH = 34
AXIS_TITLES: dict[CostAxis, str] = {
    "cache_bytes_per_token": "cache per token",
    "parameters": "parameters",
    "macs_per_token": "MACs per token",
    "training_seconds": "training seconds per run",
}
"""Short titles of the cost axes, in the order of the charts. ``Frontier`` has the long titles."""


def panel_name(table: str) -> str:
    """Return the name of a result table for the head of a chart; a long average names no task."""
    is_long = table.startswith("average of ") and len(table) > _PANEL_LENGTH
    return f"average of {table.count(', ') + 1} tasks" if is_long else table


def frontier_chart(frontier: Frontier, baseline: str) -> svg.Drawing:
    """Draw quality against one cost: the frontier as a line, error bars, a name at every point."""
    finite = math.isfinite
    shown = [one for one in frontier.points if finite(one.cost) and finite(one.quality)]
    costs = [point.cost for point in shown]
    is_cache = frontier.axis == "cache_bytes_per_token"
    steep = is_cache or (bool(costs) and min(costs) > 0 and max(costs) / min(costs) > 6)
    low, high = svg.padded(costs, 0.1, steep)
    worst, best = _quality_range(shown, frontier.metric)
    better = "higher is better" if frontier.higher_is_better else "lower is better"
    on_front = [short(point.variant) for point in shown if point.standing == "frontier"]
    return point_chart(
        [
            Point(
                name=short(point.variant),
                family=family_of(point.variant, baseline),
                x=point.cost,
                y=point.quality,
                bar=error_bar(point, frontier.metric),
                on_frontier=point.standing == "frontier",
                hollow=point.standing == "dominated",
            )
            for point in shown
        ],
        Axis(
            title=AXIS_TITLES[frontier.axis],
            low=low,
            high=high,
            write=numbers.data_size if is_cache else numbers.tick,
            logarithmic=steep,
            binary=is_cache,
        ),
        Axis(title=f"{metric_name(frontier)} ({better})", low=worst, high=best, write=numbers.tick),
        title=clip(f"{frontier.table}: {metric_name(frontier)} against {frontier.axis_title}"),
        description=f"{len(shown)} variants. Judged by the means, no variant is both cheaper and "
        f"better than {listed(on_front) or 'any'}.",
    )


def error_bar(point: FrontierPoint, metric: str) -> tuple[float, float] | None:
    """Return the uncorrected interval of the paired difference, drawn around the point.

    The interval is cut at the ends of the metric's range.
    """
    gap = point.difference
    if gap is None or gap.mean is None or gap.low_single is None or gap.high_single is None:
        return None
    ends = (point.quality + gap.low_single - gap.mean, point.quality + gap.high_single - gap.mean)
    return (max(ends[0], 0.0), min(ends[1], 1.0)) if is_share(metric) else ends


def _quality_range(points: Sequence[FrontierPoint], metric: str) -> svg.Point:
    values = [point.quality for point in points]
    low, high = svg.padded(values, 0.08)
    reach = (high - low) * 0.75
    bars = [end for point in points for end in (error_bar(point, metric) or ())]
    return svg.padded([*values, *(min(max(end, low - reach), high + reach) for end in bars)], 0.05)


def difference_chart(table: ResultTable, baseline: str) -> svg.Drawing:
    """Draw each variant's paired difference from the baseline, with both of its intervals."""
    rows = [row for row in table.rows if row.difference is not None]
    # The names of the rows are at the left of the axis.
    widths = (label_placement.text_width(short(row.variant, _NAME_LENGTH)) for row in rows)
    left = max(84.0, 24.0 + max(widths, default=0.0))
    right, bottom = left + 200.0, len(rows) * _ROW + 26
    gaps = [row.difference for row in rows if row.difference]
    low, high = _difference_range(gaps)
    across = svg.Scale(low=low, high=high, start=left, end=right)
    words = ("worse", "better") if table.higher_is_better else ("better", "worse")
    parts = [
        svg.x_axis(across, bottom, numbers.tick, 4, top=24),
        svg.line((across(0), 18), (across(0), bottom), "zero"),
        svg.text(8, 13, short(panel_name(table.name), _PANEL_LENGTH), "panel-title"),
        *(
            part
            for index, row in enumerate(rows)
            for part in _difference_row(row, baseline, across, 24 + (index + 0.5) * _ROW)
        ),
        svg.text(left, bottom + 36, f"← {words[0]}", "axis-title"),
        svg.text(right, bottom + 36, f"{words[1]} →", "axis-title end"),
        svg.text((left + right) / 2, bottom + 36, "difference", "axis-title middle"),
    ]
    supported = [
        short(row.variant)
        for row, gap in zip(rows, gaps, strict=True)
        if gap.verdict in ("better", "worse")
    ]
    return svg.Drawing(
        width=right + 12,
        height=bottom + 44,
        title=clip(f"{table.name}: difference from {baseline}"),
        description=f"Difference in {metric_name(table)} from {baseline} for {len(rows)} variants. "
        f"The data support a difference for: {listed(supported) or 'none'}.",
        parts=tuple(parts),
    )


def _difference_range(gaps: Sequence[Difference]) -> svg.Point:
    means = [abs(gap.mean) for gap in gaps if gap.mean is not None and math.isfinite(gap.mean)]
    ends = [end for gap in gaps for end in (gap.low_single, gap.high_single) if end is not None]
    wide = max([*means, 1e-9]) * 4
    kept = [min(max(end, -wide), wide) for end in ends if math.isfinite(end)]
    signed = [gap.mean for gap in gaps if gap.mean is not None]
    return svg.padded([0.0, *signed, *kept], 0.08)


def _difference_row(row: VariantRow, baseline: str, across: svg.Scale, y: float) -> list[Markup]:
    family = family_of(row.variant, baseline)
    gap = row.difference
    parts = [svg.text(8, y + 4, short(row.variant, _NAME_LENGTH), f"name t-{family.key}")]
    if gap is None or gap.mean is None or not math.isfinite(gap.mean):
        return [*parts, svg.text(across.start + 6, y + 4, count_words(row.counts), "tick")]
    style = f"f-{family.key}"
    if gap.low is not None and gap.high is not None:
        parts.append(svg.line((across(gap.low), y), (across(gap.high), y), f"whisker {style}"))
        # An interval that extends beyond the chart has no cap at that end.
        inside = [across(end) for end in (gap.low, gap.high) if across.low <= end <= across.high]
        parts += [svg.line((x, y - 3.5), (x, y + 3.5), f"whisker {style}") for x in inside]
    if gap.low_single is not None and gap.high_single is not None:
        ends = (across(gap.low_single), y), (across(gap.high_single), y)
        parts.append(svg.line(*ends, f"whisker strong {style}"))
    supported = gap.verdict in ("better", "worse")
    return [*parts, mark(family, across(gap.mean), y, 4.6, hollow=not supported)]
