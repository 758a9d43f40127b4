"""The transfer of a basis as a folder: a README with what was found, a page, CSV, the records.

Every sentence follows from the figures, so that whoever runs it again gets a page about what was
measured then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qkvary.reports.documents import render_document
from qkvary.reports.tables import Cell, Column, Table, plain, table_csv, table_markdown
from qkvary.storage.jsonvalues import encode
from qkvary.studies.basis_transfer import (
    PUBLISHED_COSINE,
    PUBLISHED_LINEAR,
    PUBLISHED_STUDENT,
    TARGETS,
    BasisRecord,
    BasisSummary,
    agrees,
    summarise_basis,
    to_json,
)
from qkvary.studies.results.statistics import Estimate, detectable_difference, welch_t
from qkvary.text import names, numbers

SCHEMA = 1
POWER = 0.8
"""Probability with which a detectable difference is seen."""
QUESTION = "Can a GELU network with a skip connection absorb a change of basis?"
CIRCULAR = (
    "Choosing a reading because its linear error is the printed one is circular: the printed "
    "9-10 % then says nothing any more about whether the reading is right, and only the student's "
    "error is left to be compared."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BasisStudy:
    """Everything that was run, and how."""

    command: str
    """What was typed."""
    environment: Mapping[str, Any]
    """Versions and machine."""
    records: tuple[BasisRecord, ...]
    """What came out."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """In order."""
        return tuple(sorted({record.run.seed for record in self.records}))


def basis_files(
    command: str, environment: Mapping[str, Any], records: Sequence[BasisRecord]
) -> dict[str, bytes]:
    """The files of the folder by name.

    Args:
        command: What was typed.
        environment: Versions and machine.
        records: What came out.
    """
    study = BasisStudy(command=command, environment=environment, records=tuple(records))
    summaries = summarise_basis(study.records)
    results, readings = results_table(summaries), readings_table()
    return {
        "README.md": _readme(study, summaries, (readings, results)).encode(),
        "report.html": _page(study, summaries, (readings, results)).encode(),
        "tables/results.csv": table_csv(results).encode(),
        "records.json": _records(study),
    }


def find_answers(summaries: Sequence[BasisSummary]) -> list[str]:
    """What was found, a sentence each."""
    return [*_about_linear(summaries), CIRCULAR, *_about_students(summaries)]


def _about_linear(summaries: Sequence[BasisSummary]) -> Iterator[str]:
    low, high = (100 * share for share in PUBLISHED_LINEAR)
    errors = {_name(one): numbers.percent(one.analytic) for one in summaries}
    near = {_name(one) for one in summaries if agrees(one)}
    found = ", ".join(f"{name} {error}" for name, error in errors.items() if name in near)
    far = {name: error for name, error in errors.items() if name not in near}
    found = found or "none"
    yield (
        f"The best linear map has an error of {low:.0f}-{high:.0f} % in the paper. Readings with "
        f"such an error, to the percent and for infinite width: {found}."
        + (f" Others: {', '.join(f'{n} {error}' for n, error in far.items())}." if far else "")
    )
    off = max(abs((one.linear.mean or 0.0) - one.analytic) for one in summaries)
    yield (
        "What was fitted differs from what follows for infinite width by at most "
        f"{100 * off:.2f} points."
    )


def _about_students(summaries: Sequence[BasisSummary]) -> Iterator[str]:
    low, high = (100 * share for share in PUBLISHED_STUDENT)
    for name in dict.fromkeys(map(_name, summaries)):
        some = [one for one in summaries if _name(one) == name]
        said = ", ".join(f"{_percent(one.student)} at d {one.d}" for one in some)
        ratios = sorted((one.linear.mean or 0.0) / (one.student.mean or 1.0) for one in some)
        yield (
            f"{name}: the student has an error of {said}; the linear map has {ratios[0]:.1f} to "
            f"{ratios[-1]:.1f} times as much."
        )
    yield (
        f"The paper prints {low:.0f}-{high:.0f} % at every width, and a cosine of "
        f"{PUBLISHED_COSINE}. {_about_width(summaries)}"
    )


def _about_width(summaries: Sequence[BasisSummary]) -> str:
    groups: dict[str, list[BasisSummary]] = {}
    for one in summaries:
        groups.setdefault(_name(one), []).append(one)
    gaps = [
        gap
        for some in groups.values()
        if some[-1].d > some[0].d and (gap := welch_t(some[-1].student, some[0].student))
    ]
    if not gaps:
        return "One width or one seed says nothing about that."
    seen = _seen(gaps)
    growing = sum(_low(gap) > 0 for gap in gaps)
    if not growing:
        return (
            "Here no reading's error is seen to grow from the smallest to the largest width (a "
            f"difference of {seen} would have been seen)."
        )
    return (
        f"Here the error grows with the width in {growing} of {len(gaps)} readings (the interval "
        "of the difference between the smallest and the largest width leaves out zero; "
        f"{seen} would have been seen); every width has the same number of steps and inputs, "
        "which are few for the larger ones."
    )


def find_caveats(study: BasisStudy, summaries: Sequence[BasisSummary]) -> list[str]:
    """What a reader must know before believing it."""
    runs = [record.run for record in study.records]
    first = runs[0]
    widths = ", ".join(map(str, sorted({run.d for run in runs})))
    falling = [
        (one.half_way.mean or 0.0) / (one.student.mean or 1.0)
        for one in summaries
        if one.student.mean
    ]
    return [
        (
            "The text of the paper has lost the formula of the target, how its three matrices are "
            "scaled, its widths, its learning rate, its weight decay and its ridge: these are "
            "ours, and so are the readings."
        ),
        (
            f"Widths {widths}, {first.steps:,} steps of {first.batch:,} inputs, where the paper "
            "has 20,000 of 65,536. Half way the students' errors were "
            f"{min(falling):.2f} to {max(falling):.2f} times as large as at the end: a longer "
            "training would end lower."
        ),
        (
            f"Intervals are Student's over {len(study.seeds)} seeds, 95 % each, and Welch's "
            "between widths; a seed draws target, student and inputs."
        ),
        *_about_power(summaries),
        "Inputs are Gaussian. Nothing here is a trained transformer.",
    ]


def _about_power(summaries: Sequence[BasisSummary]) -> Iterator[str]:
    student = _seen([one.student for one in summaries])
    linear = _seen([one.linear for one in summaries])
    if student:
        yield (
            f"A student's error that is off a given one, such as the printed, by {student} would "
            f"have been seen with {100 * POWER:.0f} % probability"
            + (f", and a linear map's off by {linear}." if linear else ".")
            + " Smaller differences may be there and not be seen."
        )


def _seen(estimates: Sequence[Estimate]) -> str:
    """From which size on differences would have been seen; nothing where none would."""
    known = sorted(size for one in estimates if (size := _detectable(one)) is not None)
    if not known:
        return ""
    low, high = (numbers.fixed(100 * size, 2) for size in (known[0], known[-1]))
    return f"{low} points" if low == high else f"{low} to {high} points"


def _detectable(estimate: Estimate) -> float | None:
    if estimate.low is None or estimate.std is None:
        return None
    return detectable_difference(
        estimate.std,
        estimate.units,
        degrees=estimate.degrees,
        confidence=estimate.confidence,
        power=POWER,
    )


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
            Column(key="agrees", title="linear error", below="as printed", numeric=False),
        ),
        rows=tuple(_row(one) for one in summaries),
    )


def _row(one: BasisSummary) -> tuple[Cell, ...]:
    return (
        plain(one.target.name),
        plain("with" if one.biases else "without"),
        plain(one.d),
        plain(one.seeds),
        plain(one.student.mean, _percent(one.student)),
        _points(_detectable(one.student)),
        plain(one.half_way.mean, numbers.percent(one.half_way.mean, 2)),
        plain(one.linear.mean, _percent(one.linear)),
        _points(_detectable(one.linear)),
        plain(one.analytic, numbers.percent(one.analytic, 2)),
        plain(one.cosine.mean, numbers.fixed(one.cosine.mean, 4)),
        plain("yes" if agrees(one) else "no"),
    )


def _points(size: float | None) -> Cell:
    return plain(size, numbers.fixed(None if size is None else 100 * size, 2))


def readings_table() -> Table:
    """What each reading computes."""
    return Table(
        key="readings",
        title="Readings of the target, h = 4 d",
        columns=(
            Column(key="target", title="target", numeric=False),
            Column(key="formula", title="formula", numeric=False),
        ),
        rows=tuple((plain(target.name), plain(target.formula)) for target in TARGETS),
    )


def _readme(study: BasisStudy, summaries: Sequence[BasisSummary], tables: Sequence[Table]) -> str:
    lines = [f"# {QUESTION}", "", _description(), "", "## What was found", ""]
    lines += [f"- {names.markdown(sentence)}" for sentence in find_answers(summaries)]
    lines += ["", "## Before you believe it", ""]
    lines += [f"- {names.markdown(sentence)}" for sentence in find_caveats(study, summaries)]
    known = "; ".join(
        f"{name} {names.markdown(str(value))}" for name, value in sorted(study.environment.items())
    )
    lines += [
        "",
        "## Run it again",
        "",
        f"    {study.command}",
        "",
        f"{known}.",
        "",
        "## Tables",
        "",
    ]
    return "\n".join([*lines, *(table_markdown(table) for table in tables)])


def _page(study: BasisStudy, summaries: Sequence[BasisSummary], tables: Sequence[Table]) -> str:
    return render_document(
        "findings.html.j2",
        {
            "title": "Transfer of a basis",
            "question": QUESTION,
            "description": _description(),
            "answers": find_answers(summaries),
            "caveats": find_caveats(study, summaries),
            "tables": tables,
            "command": study.command,
            "provenance": [(str(k), str(v)) for k, v in sorted(study.environment.items())],
        },
    )


def _description() -> str:
    return (
        "Paper 3, section 8.3: a two-layer GELU network with a skip connection learns what a "
        "change of basis makes of another one, beside the best linear map (a ridge regression on "
        "500,000 inputs)."
    )


def _records(study: BasisStudy) -> bytes:
    head = {
        "schema_version": SCHEMA,
        "command": study.command,
        "environment": dict(study.environment),
    }
    lines = ",\n".join(f"  {encode(to_json(record))}" for record in study.records)
    return f'{encode(head)[:-1]}, "records": [\n{lines}\n]}}\n'.encode()


def _name(one: BasisSummary) -> str:
    return f"{one.target.name} {'with' if one.biases else 'without'} biases"


def _percent(estimate: Estimate) -> str:
    middle = numbers.percent(estimate.mean, 2)
    if estimate.low is None or estimate.high is None:
        return middle
    low, high = (numbers.fixed(100 * end, 2) for end in (estimate.low, estimate.high))
    return f"{middle} [{low}, {high}]"


def _low(estimate: Estimate) -> float:
    return 0.0 if estimate.low is None else estimate.low
