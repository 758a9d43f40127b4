"""The charts of the papers' figures: curves of several variants in one panel, and score maps."""

import base64
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkvary.reports import label_placement, svg
from qkvary.reports.attention_maps import png
from qkvary.reports.learning_curves import thinned
from qkvary.reports.variant_styles import family_of
from qkvary.studies.results.summary import LearningCurve
from qkvary.text import names, numbers

POINTS = 80
"""Points per curve."""
_WIDTH, _HEIGHT = 400.0, 230.0
_LEFT, _TOP, _BOTTOM = 46.0, 26.0, 34.0
_DASHES = ("", "6 3", "2 3", "8 2 2 2")
"""The dashes of the first, second, ... variant of a family."""
_MAP = 150.0


def mean_curve(curves: Sequence[LearningCurve]) -> LearningCurve:
    """Return the mean of a variant's curves in several settings, at the steps of all of them.

    The band reaches from the smallest run of any setting to the largest.
    """
    first = curves[0]
    if len(curves) == 1:
        return first
    indices = [{step: index for index, step in enumerate(curve.steps)} for curve in curves]
    steps = [step for step in first.steps if all(step in index for index in indices)]
    picks = [[index[step] for index in indices] for step in steps]

    def each(column: str) -> list[list[float]]:
        columns = [getattr(curve, column) for curve in curves]
        return [
            [values[index] for values, index in zip(columns, pick, strict=True)] for pick in picks
        ]

    return LearningCurve(
        setting=first.setting,
        variant=first.variant,
        quantity=first.quantity,
        steps=tuple(steps),
        seconds=tuple(math.fsum(values) / len(curves) for values in each("seconds")),
        mean=tuple(math.fsum(values) / len(curves) for values in each("mean")),
        low=tuple(min(values) for values in each("low")),
        high=tuple(max(values) for values in each("high")),
        runs=tuple(int(sum(values)) for values in each("runs")),
    )


def curves_chart(curves: Sequence[LearningCurve], baseline: str) -> svg.Drawing:
    """Draw one quantity of several variants over steps, each with its name at its last point."""
    labels = [names.short(curve.variant) for curve in curves]
    right = _WIDTH - 8 - max(map(label_placement.text_width, labels), default=0.0)
    bottom = _HEIGHT - _BOTTOM
    ends = [value for curve in curves for value in (*curve.low, *curve.high)]
    low, high = svg.padded(ends, 0.05)
    far = max((step for curve in curves for step in curve.steps), default=1)
    across = svg.Scale(low=0, high=far, start=_LEFT, end=right)
    up = svg.Scale(low=low, high=high, start=bottom, end=_TOP)
    parts = [
        svg.y_axis(up, _LEFT, right, numbers.tick),
        svg.x_axis(across, bottom, numbers.tick, 4),
        svg.text(_LEFT - 38, 13, curves[0].quantity.replace("_", " "), "axis-title"),
        svg.text(right, _HEIGHT - 3, "training steps", "axis-title end"),
    ]
    seen = Counter[str]()
    lines = [_line(curve, baseline, across, up) for curve in curves]
    wanted = [(line.end_y, label_placement.HEIGHT) for line in lines]
    heights = label_placement.stack(wanted, _TOP - 6, bottom + 6)
    # Bands lie below all lines.
    for line in lines:
        if len(line.upper) > 1:
            points = [*line.upper, *reversed(line.lower)]
            parts.append(svg.path(points, f"band f-{line.family}", closed=True))
    for line, label, y in zip(lines, labels, heights, strict=True):
        dash = _DASHES[min(seen[line.family], len(_DASHES) - 1)]
        seen[line.family] += 1
        parts.append(
            svg.element(
                "path",
                d=svg.path_data(line.middle),
                class_=f"curve f-{line.family}",
                stroke_dasharray=dash or None,
            )
        )
        parts.append(svg.text(right + 5, y + 4, label, f"name t-{line.family}"))
    ending = "; ".join(
        f"{label} {numbers.real(curve.mean[-1])}"
        for label, curve in zip(labels, curves, strict=True)
        if curve.mean
    )
    return svg.Drawing(
        width=_WIDTH,
        height=_HEIGHT,
        title=f"{curves[0].quantity} over training steps",
        description=f"At the end: {ending}. Bands: smallest to largest run.",
        parts=tuple(parts),
    )


@dataclass(frozen=True, slots=True)
class _Line:
    family: str
    middle: list[svg.Point]
    upper: list[svg.Point]
    lower: list[svg.Point]
    end_y: float


def _line(curve: LearningCurve, baseline: str, across: svg.Scale, up: svg.Scale) -> _Line:
    def points(values: Sequence[float]) -> list[svg.Point]:
        return [
            (across(curve.steps[index]), up(values[index]))
            for index in thinned(len(values), POINTS)
            if math.isfinite(values[index])
        ]

    middle = points(curve.mean)
    return _Line(
        family_of(curve.variant, baseline).key,
        middle,
        points(curve.high),
        points(curve.low),
        middle[-1][1] if middle else up.start,
    )


def normalise_scores(keys: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return K K^T with its diagonal divided by the mean of the diagonal.

    Source: Kayyam et al. 2026, appendix A.2, figure 5.
    """
    scores = keys @ keys.T
    diagonal = scores.diagonal()
    normalised = scores.copy()
    np.fill_diagonal(normalised, diagonal / diagonal.mean())
    return normalised


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the softmax of each row."""
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def score_map(values: NDArray[np.float64], title: str) -> svg.Drawing:
    """Draw a matrix, white for its smallest number and dark for its largest."""
    low, high = float(values.min()), float(values.max())
    shades = np.rint((values - low) / (high - low or 1.0) * 15).astype(np.uint8)
    picture = base64.b64encode(png(shades)).decode("ascii")
    place = {"x": 1.0, "y": 1.0, "width": _MAP, "height": _MAP}
    ends = f"{numbers.real(low)} to {numbers.real(high)}"
    parts = (
        svg.element(
            "image",
            href=f"data:image/png;base64,{picture}",
            preserveAspectRatio="none",
            class_="map",
            **place,
        ),
        svg.element("rect", class_="map-frame", **place),
        svg.text(1 + _MAP / 2, _MAP + 16, ends, "tick middle"),
    )
    return svg.Drawing(
        width=_MAP + 2, height=_MAP + 22, title=title, description=f"From {ends}.", parts=parts
    )
