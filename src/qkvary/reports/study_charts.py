"""The charts of a study as inline SVG: quality against cost, differences, steps to solve.

Each function takes typed rows of the summary and returns one drawing. Only positions
are computed here.
"""

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup

from qkvary.reports import label_placement, svg
from qkvary.reports.study_tables import metric_name
from qkvary.reports.variant_styles import Family, family_of, mark, name_points
from qkvary.studies.results.summary import (
    CostAxis,
    Difference,
    Frontier,
    FrontierPoint,
    ResultTable,
    RunRow,
    VariantRow,
)
from qkvary.studies.results.verdicts import is_share
from qkvary.text import numbers, units
from qkvary.text.names import clip, listed, short

_ROW = 22.0
_NAME_LENGTH = 12
AXIS_TITLES: dict[CostAxis, str] = {
    "cache_bytes_per_token": "cache per token",
    "parameters": "parameters",
    "macs_per_token": "MACs per token",
    "training_seconds": "training seconds per run",
}
"""Short axis titles, in the order of the charts; the summary has the long ones."""
TICKS: dict[CostAxis, Callable[[float], str]] = {
    "cache_bytes_per_token": units.data_size,
    "parameters": numbers.tick,
    "macs_per_token": numbers.tick,
    "training_seconds": numbers.tick,
}


def better_word(higher_is_better: bool) -> str:
    """Return the better direction, for an axis title."""
    return "higher is better" if higher_is_better else "lower is better"


def frontier_chart(frontier: Frontier, baseline: str) -> svg.Drawing:
    """Draw quality against one cost: the frontier as a line, error bars, a name at every point."""
    width, height = 400.0, 330.0
    area = (54.0, 26.0, width - 10, height - 44)
    shown = _drawable(frontier)
    costs = [point.cost for point in shown]
    steep = bool(costs) and min(costs) > 0 and max(costs) / min(costs) > 6
    low, high = svg.padded(costs, 0.1, steep)
    across = svg.Scale(
        low=low,
        high=high,
        start=area[0],
        end=area[2],
        logarithmic=steep,
        binary=frontier.axis == "cache_bytes_per_token",
    )
    bottom, top = _quality_range(shown, frontier.metric)
    up = svg.Scale(low=bottom, high=top, start=area[3], end=area[1])
    front = sorted((p.cost, p.quality) for p in shown if p.standing == "frontier")
    corners = svg.staircase([(across(cost), up(quality)) for cost, quality in front], area[2])
    parts = [
        svg.y_axis(up, area[0], area[2], numbers.tick),
        svg.x_axis(across, area[3], TICKS[frontier.axis], 5),
        svg.text(
            area[0] - 44,
            13,
            f"{metric_name(frontier)} ({better_word(frontier.higher_is_better)})",
            "axis-title",
        ),
        svg.text(area[2], height - 6, AXIS_TITLES[frontier.axis], "axis-title end"),
        svg.path(corners, "frontier"),
        *_points(frontier, baseline, across, up, area, label_placement.boxes_along(corners)),
    ]
    on_front = [point.variant for point in shown if point.standing == "frontier"]
    description = (
        f"{len(shown)} variants; by the means, nothing is both cheaper and better than "
        f"{listed([short(label) for label in on_front]) or 'any'}. "
        "The table below has every figure."
    )
    title = f"{frontier.table}: {metric_name(frontier)} against {frontier.axis_title}"
    return svg.Drawing(
        width=width, height=height, title=clip(title), description=description, parts=tuple(parts)
    )


def _drawable(frontier: Frontier) -> list[FrontierPoint]:
    finite = math.isfinite
    return [one for one in frontier.points if finite(one.cost) and finite(one.quality)]


def error_bar(point: FrontierPoint, metric: str) -> tuple[float, float] | None:
    """Return the uncorrected interval of the paired difference, drawn around the point.

    It is cut at the ends of the metric's range.
    """
    gap = point.difference
    if gap is None or gap.mean is None or gap.low_single is None or gap.high_single is None:
        return None
    ends = (point.quality + gap.low_single - gap.mean, point.quality + gap.high_single - gap.mean)
    return (max(ends[0], 0.0), min(ends[1], 1.0)) if is_share(metric) else ends


def separate(places: Sequence[svg.Point]) -> list[svg.Point]:
    """Move points that cover each other a few pixels to the right."""
    moved: list[svg.Point] = []
    for left, y in places:
        x = left
        while any(abs(x - other) < 6 and abs(y - height) < 7 for other, height in moved):
            x += 4
        moved.append((x, y))
    return moved


def _quality_range(points: Sequence[FrontierPoint], metric: str) -> svg.Point:
    values = [point.quality for point in points]
    low, high = svg.padded(values, 0.08)
    reach = (high - low) * 0.75
    bars = [end for point in points for end in (error_bar(point, metric) or ())]
    return svg.padded([*values, *(min(max(end, low - reach), high + reach) for end in bars)], 0.05)


def _points(
    frontier: Frontier,
    baseline: str,
    across: svg.Scale,
    up: svg.Scale,
    area: label_placement.Box,
    line_boxes: Sequence[label_placement.Box],
) -> list[Markup]:
    bars: list[Markup] = []
    marks: list[Markup] = []
    obstacles: list[label_placement.Box] = []
    named: list[tuple[label_placement.Spot, Family]] = []
    points = _drawable(frontier)
    places = separate([(across(point.cost), up(point.quality)) for point in points])
    for point, (x, y) in zip(points, places, strict=True):
        family = family_of(point.variant, baseline)
        ends = error_bar(point, frontier.metric)
        if ends:
            low, high = up(ends[0]), up(ends[1])
            bars.append(svg.line((x, low), (x, high), f"bar f-{family.key}"))
        hollow = point.standing == "dominated"
        marks.append(mark(family, x, y, 5, hollow=hollow))
        obstacles.append((x - 7, y - 7, x + 7, y + 7))
        named.append((label_placement.Spot(text=short(point.variant), x=x, y=y), family))
    obstacles.extend(line_boxes)
    leaders, names = name_points(named, obstacles, area)
    return [*bars, *leaders, *marks, *names]


def difference_chart(table: ResultTable, baseline: str) -> svg.Drawing:
    """Draw the paired difference of each variant to the baseline with both of its intervals."""
    rows = [row for row in table.rows if row.difference is not None]
    left = _margin(rows)
    width = left + 212.0
    height = len(rows) * _ROW + 70
    low, high = _difference_range([row.difference for row in rows if row.difference])
    across = svg.Scale(low=low, high=high, start=left, end=width - 12)
    bottom = height - 44
    parts = [
        svg.x_axis(across, bottom, numbers.tick, 4, top=24),
        svg.line((across(0), 18), (across(0), bottom), "zero"),
        svg.text(8, 13, short(table.name, 34), "panel-title"),
    ]
    for index, row in enumerate(rows):
        parts.extend(_difference_row(row, baseline, across, 24 + (index + 0.5) * _ROW))
    words = ("worse", "better") if table.higher_is_better else ("better", "worse")
    parts.append(svg.text(left, height - 8, f"← {words[0]}", "axis-title"))
    parts.append(svg.text(width - 12, height - 8, f"{words[1]} →", "axis-title end"))
    parts.append(svg.text((left + width - 12) / 2, height - 8, "difference", "axis-title middle"))
    supported = [
        row.variant
        for row in rows
        if row.difference and row.difference.verdict in ("better", "worse")
    ]
    description = (
        f"Difference in {metric_name(table)} to {baseline} for {len(rows)} variants. "
        f"Supported by the data: "
        f"{listed([short(label) for label in supported]) or 'none'}."
    )
    return svg.Drawing(
        width=width,
        height=height,
        title=clip(f"{table.name}: difference to {baseline}"),
        description=description,
        parts=tuple(parts),
    )


def _margin(rows: Sequence[VariantRow]) -> float:
    """Return the left end of a chart, to the right of the names of its rows."""
    names = (short(row.variant, _NAME_LENGTH) for row in rows)
    return max((84.0, *(24.0 + label_placement.text_width(name) for name in names)))


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
        parts.append(svg.text(across(0) + 6, y + 4, _why_empty(row), "tick"))
        return parts
    if gap.low is not None and gap.high is not None:
        parts.append(
            svg.line((across(gap.low), y), (across(gap.high), y), f"whisker f-{family.key}")
        )
        for end in (gap.low, gap.high):
            # An interval that extends beyond the chart has no cap at that end.
            if across.low <= end <= across.high:
                x = across(end)
                parts.append(svg.line((x, y - 3.5), (x, y + 3.5), f"whisker f-{family.key}"))
    if gap.low_single is not None and gap.high_single is not None:
        ends = (across(gap.low_single), y), (across(gap.high_single), y)
        parts.append(svg.line(*ends, f"whisker strong f-{family.key}"))
    supported = gap.verdict in ("better", "worse")
    parts.append(mark(family, across(gap.mean), y, 4.6, hollow=not supported))
    return parts


def _why_empty(row: VariantRow) -> str:
    counts = row.counts
    if counts.diverged:
        return f"{counts.diverged} diverged"
    return f"{counts.failed} failed" if counts.failed else "not run"


def solving_chart(table: ResultTable, runs: Sequence[RunRow], baseline: str) -> svg.Drawing:
    """Draw the steps that each seed took to solve the task, and the number that never did."""
    rows = [row for row in table.rows if row.solving]
    horizon = max((row.solving.horizon for row in rows if row.solving), default=1)
    left, gutter = _margin(rows), 66.0
    width = left + 316.0
    height = len(rows) * _ROW + 70
    bottom = height - 44
    across = svg.Scale(low=0, high=horizon, start=left, end=width - gutter)
    parts = [
        svg.x_axis(across, bottom, numbers.tick, 5, top=24),
        svg.line((across(horizon), 24), (across(horizon), bottom), "limit"),
        svg.text(8, 13, short(table.name, 30), "panel-title"),
        svg.text(width - gutter + 8, 13, "not solved", "axis-title"),
        svg.text(width - gutter, height - 8, "training steps until solved", "axis-title end"),
    ]
    for index, row in enumerate(rows):
        seeds = [
            run for run in runs if run.variant == row.variant and run.setting in table.settings
        ]
        parts.extend(_solving_row(row, seeds, baseline, across, 24 + (index + 0.5) * _ROW))
    solved = sum(row.solving.solved for row in rows if row.solving)
    total = sum(row.solving.runs for row in rows if row.solving)
    description = (
        f"{solved} of {total} runs solved the task within {horizon:,} steps; "
        "small marks are single runs."
    )
    return svg.Drawing(
        width=width,
        height=height,
        title=clip(f"{table.name}: steps until solved"),
        description=description,
        parts=tuple(parts),
    )


def _solving_row(
    row: VariantRow, seeds: Sequence[RunRow], baseline: str, across: svg.Scale, y: float
) -> list[Markup]:
    solving = row.solving
    family = family_of(row.variant, baseline)
    parts = [svg.text(8, y + 4, short(row.variant, _NAME_LENGTH), f"name t-{family.key}")]
    if solving is None:
        return parts
    steps = sorted(
        run.steps_to_solve for run in seeds if run.selected and run.steps_to_solve is not None
    )
    if steps:
        ends = (across(steps[0]), y), (across(steps[-1]), y)
        parts.append(svg.line(*ends, f"whisker f-{family.key}"))
    parts.extend(
        svg.line((across(step), y - 5), (across(step), y + 5), f"seed f-{family.key}")
        for step in steps
    )
    if solving.median_steps is not None:
        parts.append(mark(family, across(solving.median_steps), y, 5))
    unsolved = solving.runs - solving.solved
    if unsolved:
        parts.append(
            svg.text(across.end + 8, y + 4, f"{unsolved} of {solving.runs}", "tick strong")
        )
    return parts
