"""Draws learning curves: several variants in one chart, or one panel for each variant.

The bands of many variants would overlap in one chart. Separate panels on one scale do not overlap,
and need no colours.
"""

import math
from collections.abc import Iterable, Sequence
from functools import partial

from qkvary.reports import svg
from qkvary.reports.charts import Axis, Line, line_chart
from qkvary.reports.report import Chart
from qkvary.reports.variant_styles import family_of
from qkvary.studies.results.summary import LearningCurve
from qkvary.text import names, numbers

POINTS = 60
"""Maximum number of points per curve of a chart; the CSV file has all."""
_WIDTH, _HEIGHT = 212.0, 148.0


def thinned(length: int, points: int = POINTS) -> list[int]:
    """Return at most ``points`` indices spread over ``length``, both ends included."""
    if length <= points:
        return list(range(length))
    return sorted({round(index * (length - 1) / (points - 1)) for index in range(points)})


def headline_quantity(curves: Sequence[LearningCurve], metric: str) -> str:
    """Return the name of the quantity that shows a setting's headline metric during training."""
    quantities = [curve.quantity for curve in curves]
    last = metric.replace("_", " ").split()[-1] if metric else ""
    for wanted in (f"validation {last}", "validation loss"):
        if wanted in quantities:
            return wanted
    return next((name for name in quantities if name.startswith("validation")), quantities[0])


def panels(curves: Sequence[LearningCurve], baseline: str) -> tuple[Chart, ...]:
    """Return a panel for each curve of one setting and quantity; all panels have the same scale."""
    plot = _plot(curves)
    behind = next((curve for curve in curves if curve.variant == baseline), None)
    return tuple(Chart(draw=partial(_panel, plot, curve, behind, baseline)) for curve in curves)


def count_runs(curves: Iterable[LearningCurve]) -> str:
    """Return a text with the number of runs per point of the curves."""
    counts = [number for curve in curves for number in curve.runs]
    if not counts:
        return "no runs"
    low, high = min(counts), max(counts)
    return names.count(high, "run") if low == high else f"{low} to {high} runs"


def _plot(curves: Sequence[LearningCurve]) -> svg.Plot:
    ends = [value for curve in curves for value in (*curve.low, *curve.high)]
    usable = sorted(value for value in ends if math.isfinite(value))
    if len(usable) > 50:
        # One exploding run must not flatten the others, so the lowest and highest percent may be
        # cut.
        usable = usable[len(usable) // 200 : len(usable) - len(usable) // 100]
    low, high = svg.padded(usable, 0.05)
    far = max(step for curve in curves for step in curve.steps) or 1
    return svg.Plot(
        svg.Scale(low=0, high=far, start=36, end=_WIDTH - 8),
        svg.Scale(low=low, high=high, start=_HEIGHT - 20, end=24),
    )


def _panel(
    plot: svg.Plot, curve: LearningCurve, behind: LearningCurve | None, baseline: str
) -> svg.Drawing:
    def places(one: LearningCurve, values: Sequence[float]) -> list[svg.Point]:
        return [
            plot.point(one.steps[index], values[index])
            for index in thinned(len(values))
            if math.isfinite(values[index])
        ]

    family = family_of(curve.variant, baseline)
    title = names.short(curve.variant, 24)
    left, _, right, bottom = plot.area
    parts = [
        svg.text(left, 14, title, f"panel-title t-{family.key}"),
        plot.cover("plot"),
        svg.y_axis(plot.up, left, right, numbers.tick, 3),
        svg.x_axis(plot.across, bottom, numbers.tick, 3),
    ]
    if behind is not None and behind is not curve:
        parts.append(svg.path(places(behind, behind.mean), "behind"))
    upper, lower = places(curve, curve.high), places(curve, curve.low)
    if len(upper) > 1:
        parts.append(svg.path([*upper, *reversed(lower)], f"band f-{family.key}", closed=True))
    parts.append(svg.path(places(curve, curve.mean), f"curve f-{family.key}"))
    last = next((value for value in reversed(curve.mean) if math.isfinite(value)), None)
    return svg.Drawing(
        width=_WIDTH,
        height=_HEIGHT,
        title=names.short(curve.variant, 60),
        description=f"{curve.quantity} over steps; the mean at the end is {numbers.real(last)}. "
        "The band reaches from the smallest to the largest value of all runs.",
        parts=tuple(parts),
    )


def curves_chart(
    curves: Sequence[LearningCurve],
    baseline: str,
    behind: Sequence[LearningCurve] = (),
    size: tuple[float, float] = (400.0, 230.0),
) -> svg.Drawing:
    """Draw one quantity of several variants over steps, each with its name at its last point.

    The curves in ``behind`` are drawn in grey below the others. Their values outside the scale of
    the others are left out.
    """
    low, high = svg.padded([value for curve in curves for value in (*curve.low, *curve.high)], 0.05)

    def points(curve: LearningCurve, values: Sequence[float]) -> list[svg.Point]:
        return [
            (curve.steps[index], values[index])
            for index in thinned(len(values))
            if low <= values[index] <= high
        ]

    lines = [
        Line(
            name=(names.short(curve.variant),),
            family=family_of(curve.variant, baseline),
            points=mean,
            band=[*points(curve, curve.high), *reversed(points(curve, curve.low))],
        )
        for curve in curves
        if (mean := points(curve, curve.mean))
    ]
    quantity = curves[0].quantity
    ending = "; ".join(
        f"{names.short(curve.variant)} {numbers.real(curve.mean[-1])}"
        for curve in curves
        if curve.mean
    )
    return line_chart(
        lines,
        Axis(
            title="training steps",
            low=0,
            high=max((step for curve in curves for step in curve.steps), default=1),
            write=numbers.tick,
            ticks=4,
        ),
        Axis(title=quantity.replace("_", " "), low=low, high=high, write=numbers.tick),
        size=size,
        title=f"{quantity} over training steps",
        description=f"Last values: {ending}. Bands reach from the smallest to the largest value of "
        "all runs.",
        draw_below=lambda plot: (
            svg.path([plot.point(*point) for point in points(curve, curve.mean)], "behind")
            for curve in behind
        ),
    )
