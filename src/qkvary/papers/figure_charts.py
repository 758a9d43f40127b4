"""Means of curves over several settings, and score maps, which only the papers' figures need."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qkvary.reports import svg
from qkvary.reports.attention_maps import png
from qkvary.studies.results.summary import LearningCurve
from qkvary.text import numbers

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
    ends = f"{numbers.real(low)} to {numbers.real(high)}"
    parts = (
        svg.image(png(shades), (1.0, 1.0), (_MAP, _MAP), "map", is_stretched=True),
        svg.element("rect", class_="map-frame", x=1.0, y=1.0, width=_MAP, height=_MAP),
        svg.text(1 + _MAP / 2, _MAP + 16, ends, "tick middle"),
    )
    return svg.Drawing(
        width=_MAP + 2, height=_MAP + 22, title=title, description=f"From {ends}.", parts=parts
    )
