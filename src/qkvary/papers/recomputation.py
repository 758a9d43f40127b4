"""Recomputes every published figure from the cost model, and derives a verdict on it.

The verdict compares the recomputed number with the printed number, to the printed digits:

- ``equal``: the recomputed number rounds to the printed number;
- ``other convention``: it rounds to the printed number only under another convention, which the
  report names;
- ``rounding``: the printed number was truncated, rounded twice or coarsely, or computed from
  rounded inputs;
- ``wrong``: none of these applies;
- ``measured``: the figure is the result of an experiment, so there is nothing to recompute;
- ``stated``: the figure is a setting, words, or an empty cell.

Never imports torch.
"""

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from qkvary.papers import averages, projection_costs
from qkvary.papers.derivation import Alternative, Derivation, Registry, Value
from qkvary.papers.key_value import recomputations as key_value
from qkvary.papers.overview import recomputations as overview
from qkvary.papers.poster import recomputations as poster
from qkvary.papers.query_identity import recomputations as query_identity
from qkvary.papers.tables import load_published
from qkvary.papers.three_projections import recomputations as three_projections
from qkvary.papers.three_projections import recomputations_text as three_projections_text
from qkvary.papers.three_projections import scenario
from qkvary.studies.published_tables import PublishedFigure, PublishedTable, Recomputes
from qkvary.text.printed import (
    coarse_step,
    printed_interval,
    printed_range,
    printed_step,
    rounds_to,
    rounds_twice_to,
    truncates_to,
)

FigureVerdict = Literal["equal", "rounding", "other convention", "wrong", "measured", "stated"]
NOTHING_PRINTED = "-"
VERDICTS: tuple[FigureVerdict, ...] = get_args(FigureVerdict)

_SOURCES = (
    averages,
    key_value,
    overview,
    poster,
    projection_costs,
    query_identity,
    scenario,
    three_projections,
    three_projections_text,
)
DERIVATIONS: Registry = {
    name: derive for source in _SOURCES for name, derive in source.TABLES.items()
}
"""The function that derives the figures of a table, by the table's name. Tables without a function
have only measurements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """A published figure with its recomputation."""

    table: str
    figure: PublishedFigure
    unit: str
    """The unit of the figure's column."""
    derivation: Derivation | None
    """The recomputation; ``None`` if the figure cannot be recomputed."""
    verdict: FigureVerdict
    """The result of comparing the recomputed figure with the printed figure."""
    alternative: Alternative | None
    """The other convention or the mistake that leads to the published number."""
    why: str
    """The reason why the recomputed figure differs, in sentences; empty if it is equal."""

    @property
    def needs_explanation(self) -> bool:
        """Whether the recomputed number differs from the printed number.

        False if the figure was not recomputed.
        """
        return self.verdict in ("rounding", "other convention", "wrong")


@functools.cache
def recompute(name: str) -> tuple[Recomputed, ...]:
    """Recompute every figure of a published table."""
    table = load_published(name)
    return tuple(recompute_figure(table, figure) for figure in table.figures)


def recompute_figure(table: PublishedTable, figure: PublishedFigure) -> Recomputed:
    """Recompute one figure of a table."""
    column = next(column for column in table.columns if column.key == figure.column)
    derive = DERIVATIONS.get(table.name)
    printed = figure.printed != NOTHING_PRINTED
    derivation = derive(figure) if derive and printed else None
    verdict, alternative, why = judge(figure, derivation)
    if verdict == "measured" and column.stated:
        verdict = "stated"
    return Recomputed(
        table=table.name,
        figure=figure,
        unit=column.unit,
        derivation=derivation,
        verdict=verdict,
        alternative=alternative,
        why=why,
    )


def published_tables(*names: str) -> tuple[PublishedTable, ...]:
    """Return published tables for a study; each figure states whether its recomputation agrees."""
    return tuple(
        replace(load_published(name), figures=tuple(map(_checked, recompute(name))))
        for name in names
    )


def _checked(one: Recomputed) -> PublishedFigure:
    number = one.derivation.value if one.derivation else None
    return replace(
        one.figure,
        recomputes=_RECOMPUTES[one.verdict],
        recomputed=number if isinstance(number, float | int) else None,
        why=one.why,
    )


_RECOMPUTES: Mapping[FigureVerdict, Recomputes] = {
    "equal": "yes",
    "rounding": "rounding",
    "other convention": "other convention",
    "wrong": "no",
    "measured": "not checkable",
    "stated": "not checkable",
}
"""The words for each verdict in the tables of a study."""


def count_verdicts(name: str) -> Mapping[FigureVerdict, int]:
    """Count the figures of a table by verdict, including zero counts."""
    found = Counter(one.verdict for one in recompute(name))
    return {verdict: found[verdict] for verdict in VERDICTS}


def judge(
    figure: PublishedFigure, derivation: Derivation | None
) -> tuple[FigureVerdict, Alternative | None, str]:
    """Compare a published number with its recomputation.

    Returns the verdict, the alternative that gives the published number (None if no alternative
    does), and a sentence on why the two numbers differ. The sentence is empty if they are equal or
    if ``derivation`` is None.
    """
    if derivation is None:
        is_number = figure.value is not None or printed_range(figure) is not None
        return ("measured" if is_number else "stated"), None, ""
    if derivation.holds is not None:
        return ("equal", None, "") if derivation.holds else ("wrong", None, derivation.note)
    if _prints_as(derivation.value, figure):
        return "equal", None, ""
    for alternative in derivation.others:
        if _prints_as(alternative.value, figure):
            number = format_value(alternative.value, figure)
            why = f"With {alternative.convention}, the number is {number}."
            return "other convention", alternative, _join(why, derivation.note)
    for alternative in derivation.slips:
        if _prints_as(alternative.value, figure) or _rounding(alternative.value, figure, None):
            number = format_value(alternative.value, figure)
            why = f"The number {number} results from {alternative.convention}."
            return "wrong", alternative, _join(why, derivation.note)
    rounding = _rounding(derivation.value, figure, derivation.spread)
    if rounding:
        return "rounding", None, _join(rounding, derivation.note)
    number = "" if isinstance(derivation.value, str) else format_value(derivation.value, figure)
    why = f"No rounding of {number} gives {figure.printed}." if number else ""
    return "wrong", None, _join(why, derivation.note)


def format_value(value: Value, figure: PublishedFigure) -> str:
    """Format a recomputed number with two digits more than the published number."""
    if isinstance(value, str):
        return value
    step = printed_step(figure) if figure.value is not None else 1.0
    decimals = 2
    while step < 0.99 and decimals < 8:
        step *= 10
        decimals += 1
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _prints_as(value: Value, figure: PublishedFigure) -> bool:
    if isinstance(value, str):
        return _plain(value) == _plain(figure.printed)
    if figure.value is None:
        ends = printed_range(figure)
        return ends is not None and ends[0] <= value <= ends[1]
    return rounds_to(value, figure.value, printed_step(figure))


def _plain(text: str) -> str:
    """Remove spaces and a final "only", so that words and formulas can be compared."""
    return "".join(text.removesuffix(" only").split())


def _rounding(value: Value, figure: PublishedFigure, spread: tuple[float, float] | None) -> str:
    """Return a sentence on the rounding that gives the published number, or an empty text."""
    if isinstance(value, str) or figure.value is None:
        return ""
    printed, step = figure.value, printed_step(figure)
    number = format_value(value, figure)
    low, high = printed_interval(figure)
    if spread:
        ends = " and ".join(format_value(end, figure) for end in spread)
        fits = spread[0] <= high and low <= spread[1]
        why = f"Rounded inputs give {number}; the exact number lies between {ends}."
        return why if fits else ""
    if rounds_twice_to(value, printed, step):
        return f"The number {number} was rounded twice."
    if truncates_to(value, printed, step):
        return f"The number {number} was truncated instead of rounded."
    if rounds_to(value, printed, coarse_step(figure)):
        return f"The number {number} was rounded to fewer digits than are printed."
    return ""


def _join(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)
