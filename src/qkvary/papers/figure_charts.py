"""Draws charts that only the papers' figures need: mean curves, score maps, errors by width."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from qkvary.papers.claim import ByStudy, ClaimedRange
from qkvary.papers.kept_figures import KeptFigure, find_packaged
from qkvary.reports import svg
from qkvary.reports.attention_maps import png
from qkvary.reports.variant_styles import FAMILIES, mark
from qkvary.studies.results.summary import LearningCurve
from qkvary.text import numbers

_MAP = 150.0
TRANSFER = "mlp-basis-transfer"
_WIDTHS = (16, 32, 64)
_LEARNERS = dict(zip(("student", "linear map"), FAMILIES[1::2], strict=False))
_AREA = svg.Scale(low=0, high=len(_WIDTHS) - 1, start=64, end=226)


def mean_curve(curves: Sequence[LearningCurve]) -> LearningCurve:
    """Return the mean of the curves that one variant has in several settings.

    The mean is taken at the steps that all curves have. The band spans the runs of all settings,
    from the lowest value to the highest.
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
    """Draw a matrix as a map, from white (smallest number) to dark (largest number)."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferError:
    """The relative error, in percent, of a network or linear map that learned a change of basis."""

    learner: str
    width: int
    error: KeptFigure


def transfer_errors(reading: str) -> Iterator[TransferError]:
    """Yield the stored errors for one reading of the formula in paper 3, section 8.3."""
    for learner in _LEARNERS:
        for width in _WIDTHS:
            judge = ByStudy(
                study=TRANSFER,
                table=f"{reading}, d {width}",
                variant=learner,
                reference="",
                claimed=ClaimedRange(),
                unit="",
                quantity="error",
            )
            if error := find_packaged(judge):
                yield TransferError(learner=learner, width=width, error=error)


def transfer_chart(errors: Sequence[TransferError], title: str) -> svg.Drawing:
    """Draw errors and intervals by width: one line for the network, one for the linear map."""
    ends = [end for one in errors for end in (one.error.low, one.error.high) if end is not None]
    up = svg.Scale(low=0, high=svg.padded(ends)[1], start=150, end=24)
    parts: list[Markup] = [
        svg.text(14, 12, "error, percent", "axis-title"),
        svg.y_axis(up, 40, 250, partial(numbers.real, digits=3), 4),
        *(
            svg.text(_AREA(index), 166, str(one), "tick middle")
            for index, one in enumerate(_WIDTHS)
        ),
        svg.text(145, 182, "width", "axis-title middle"),
    ]
    for learner, family in _LEARNERS.items():
        own = [one for one in errors if one.learner == learner]
        places = [(_AREA(_WIDTHS.index(one.width)), up(one.error.value)) for one in own]
        parts.append(svg.path(places, f"curve f-{family.key}"))
        for one, (x, y) in zip(own, places, strict=True):
            if one.error.low is not None and one.error.high is not None:
                bar = (x, up(one.error.low)), (x, up(one.error.high))
                parts.append(svg.line(*bar, f"bar f-{family.key}"))
            parts.append(mark(family, x, y, 4.2))
        if places:
            parts.append(svg.text(places[-1][0], places[-1][1] - 9, learner, "tick middle"))
    said = "; ".join(
        f"{one.learner}, width {one.width}: {numbers.fixed(one.error.value, 2)} %" for one in errors
    )
    return svg.Drawing(
        width=262, height=190, title=title, description=f"{said}.", parts=tuple(parts)
    )
