"""The tables of the transfer of a basis: errors as the page shows them, and in long form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from basis_runs import BasisSummary

from qkvary.papers import script_figures
from qkvary.reports.tables import Cell, Column, Raw, Table, plain
from qkvary.studies.results.statistics import Estimate, find_detectable, welch_t
from qkvary.text import numbers

POWER = 0.8
"""Probability with which a detectable difference is seen."""


def results_table(summaries: Sequence[BasisSummary]) -> Table:
    """One row for each reading, choice of biases and width."""
    return Table(
        key="results",
        title="Relative errors: roots of summed squares over summed squared outputs",
        columns=(
            Column(key="target", title="target", numeric=False),
            Column(key="biases", title="biases", numeric=False),
            Column(key="d", title="d"),
            Column(key="runs", title="seeds"),
            Column(key="student_error", title="student", below="95 %"),
            Column(key="student_detectable", title="detectable", below="points"),
            Column(key="half_way_error", title="student", below="half way"),
            Column(key="linear_error", title="linear map", below="95 %"),
            Column(key="linear_detectable", title="detectable", below="points"),
            Column(key="analytic_error", title="linear map", below="infinite width"),
            Column(key="student_cosine", title="cosine", below="student"),
            Column(
                key="agrees",
                title="linear error",
                below="as printed, infinite width",
                numeric=False,
            ),
        ),
        rows=tuple(_row(one) for one in summaries),
    )


def _row(one: BasisSummary) -> tuple[Cell, ...]:
    return (
        plain(one.run.target),
        plain("with" if one.run.biases else "without"),
        plain(one.run.d),
        plain(one.seeds),
        plain(one.student.mean, percent(one.student)),
        _points(find_detectable(one.student, power=POWER)),
        plain(one.half_way.mean, numbers.percent(one.half_way.mean, 2)),
        plain(one.linear.mean, percent(one.linear)),
        _points(find_detectable(one.linear, power=POWER)),
        plain(one.analytic, numbers.percent(one.analytic, 2)),
        plain(one.cosine.mean, numbers.fixed(one.cosine.mean, 4)),
        plain("yes" if one.agrees else "no"),
    )


def _points(size: float | None) -> Cell:
    return plain(size, numbers.fixed(None if size is None else 100 * size, 2))


def percent(estimate: Estimate) -> str:
    """An error with its interval."""
    middle = numbers.percent(estimate.mean, 2)
    if estimate.low is None or estimate.high is None:
        return middle
    low, high = (numbers.fixed(100 * end, 2) for end in (estimate.low, estimate.high))
    return f"{middle} [{low}, {high}]"


def figures_table(summaries: Sequence[BasisSummary]) -> Table:
    """Errors, cosines, and differences between the largest and the smallest width, in long form."""
    groups: dict[str, list[BasisSummary]] = {}
    for one in summaries:
        biases = "with" if one.run.biases else "without"
        groups.setdefault(f"{one.run.target} {biases} biases", []).append(one)
    return script_figures.figures_table(
        row for name, some in groups.items() for row in _long(name, some)
    )


def _long(reading: str, some: Sequence[BasisSummary]) -> Iterator[dict[str, Raw]]:
    for one in some:
        place = f"{reading}, d {one.run.d}"
        linear = one.run.d * (one.run.d + one.run.biases)
        for variant, quantity, estimate, parameters in (
            ("student", "error", one.student, one.run.parameters),
            ("student", "cosine", one.cosine, one.run.parameters),
            ("linear map", "error", one.linear, linear),
        ):
            yield script_figures.figure_row(
                estimate,
                table=place,
                variant=variant,
                quantity=quantity,
                runs=one.seeds,
                parameters=[parameters],
                scale=100 if quantity == "error" else 1,
            )
    first, last = some[0], some[-1]
    gap = welch_t(last.student, first.student) if last.run.d > first.run.d else None
    if gap:
        yield script_figures.figure_row(
            gap,
            table=reading,
            variant=f"d {last.run.d}",
            reference=f"d {first.run.d}",
            quantity="error",
            runs=first.seeds + last.seeds,
            parameters=[first.run.parameters, last.run.parameters],
            scale=100,
        )
