"""What is asked about paper 3's transfer of a basis, what came out, and the folder about it.

The paper trains a two-layer GELU network with a skip connection on the function that a change of
basis makes of another one, and compares it with the best linear map. Our copy of its text lacks the
formula of the target and the scales of its three matrices; so every reading is run that could be
meant.
Every sentence of the README follows from the figures.

Source: Karbevski and Mijoski, "[Key,Value] is probably all you need", section 8.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from basis_runs import (
    PUBLISHED_LINEAR,
    TARGETS,
    BasisRecord,
    BasisRun,
    BasisSummary,
    summarise,
    to_json,
)
from basis_tables import POWER, figures_table, percent, results_table

from qkvary.papers.script_figures import describe_environment
from qkvary.reports.markdown import table_markdown
from qkvary.reports.tables import Column, Table, plain, table_csv
from qkvary.storage.jsonvalues import encode
from qkvary.studies.results.statistics import Estimate, find_detectable, welch_t
from qkvary.text import names, numbers

SCHEMA = 1
PUBLISHED_STUDENT = (0.04, 0.05)
PUBLISHED_COSINE = 0.999
PUBLISHED_INPUTS = (20_000, 65_536)
"""Steps, and inputs a step."""
QUESTION = "Can a GELU network with a skip connection absorb a change of basis?"
DESCRIPTION = (
    "Paper 3, section 8.3: a two-layer GELU network with a skip connection learns what a "
    "change of basis makes of another one, beside the best linear map (a ridge regression on "
    "500,000 inputs)."
)
CIRCULAR = (
    "Choosing a reading because its linear error is the printed one is circular: the printed "
    "9-10 % then says nothing any more about whether the reading is right, and only the student's "
    "error is left to be compared."
)


def basis_files(environment: Mapping[str, Any], records: Sequence[BasisRecord]) -> dict[str, bytes]:
    """Returns the files of the folder by name.

    Args:
        environment: Versions and machine.
        records: What came out.
    """
    runs = [record.run for record in records]
    command = make_command(runs)
    summaries = summarise(records)
    results = results_table(summaries)
    known = describe_environment(environment)
    lines = [
        *(f"# {QUESTION}", "", DESCRIPTION, "", "## What was found", ""),
        *(f"- {names.markdown(sentence)}" for sentence in find_answers(summaries)),
        *("", "## Before you believe it", ""),
        *(f"- {names.markdown(sentence)}" for sentence in find_caveats(runs, summaries)),
        *("", "## Run it again", "", f"    {command}", "", f"{known}.", "", "## Tables", ""),
        *(table_markdown(table) for table in (readings_table(), results)),
    ]
    head = {"schema_version": SCHEMA, "command": command, "environment": dict(environment)}
    rows = ",\n".join(f"  {encode(to_json(record))}" for record in records)
    return {
        "README.md": "\n".join(lines).encode(),
        "tables/results.csv": table_csv(results).encode(),
        "tables/figures.csv": table_csv(figures_table(summaries)).encode(),
        "records.json": f'{encode(head)[:-1]}, "records": [\n{rows}\n]}}\n'.encode(),
    }


def make_command(runs: Sequence[BasisRun]) -> str:
    """Returns the command that makes these runs."""
    first = runs[0]
    targets = [name for name in TARGETS if name in {run.target for run in runs}]
    biases = {run.reading.split()[1] for run in runs}
    options = {
        "widths": " ".join(map(str, sorted({run.d for run in runs}))),
        "seeds": " ".join(map(str, sorted({run.seed for run in runs}))),
        "steps": str(first.steps),
        "batch": str(first.batch),
        "targets": " ".join(targets) if len(targets) < len(TARGETS) else "",
        "biases": "".join(biases) if len(biases) == 1 else "",
        "device": first.device if first.device != "cpu" else "",
    }
    given = " ".join(f"--{name} {value}" for name, value in options.items() if value)
    return f"python studies/query_identity/mlp-basis-transfer/measure.py {given}"


def find_answers(summaries: Sequence[BasisSummary]) -> list[str]:
    """What was found, a sentence each."""
    return [*_about_linear(summaries), CIRCULAR, *_about_students(summaries)]


def _about_linear(summaries: Sequence[BasisSummary]) -> Iterator[str]:
    low, high = (100 * share for share in PUBLISHED_LINEAR)
    errors = {one.run.reading: numbers.percent(one.analytic) for one in summaries}
    near = {one.run.reading for one in summaries if one.agrees}
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
    for name in dict.fromkeys(one.run.reading for one in summaries):
        some = [one for one in summaries if one.run.reading == name]
        said = ", ".join(f"{percent(one.student)} at d {one.run.d}" for one in some)
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
        groups.setdefault(one.run.reading, []).append(one)
    gaps = [
        gap
        for some in groups.values()
        if some[-1].run.d > some[0].run.d and (gap := welch_t(some[-1].student, some[0].student))
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
        f"{seen} would have been seen); every width has the same number of steps and inputs."
    )


def find_caveats(runs: Sequence[BasisRun], summaries: Sequence[BasisSummary]) -> list[str]:
    """What a reader must know before believing it."""
    first, seeds = runs[0], len({run.seed for run in runs})
    widths = ", ".join(map(str, sorted({run.d for run in runs})))
    falling = [
        (one.half_way.mean or 0.0) / (one.student.mean or 1.0)
        for one in summaries
        if one.student.mean
    ]
    return [
        (
            "Our copy of the text lacks the formula of the target, how its three matrices are "
            "scaled, its widths, its learning rate, its weight decay and its ridge: these are "
            "ours, and so are the readings."
        ),
        (
            f"Widths {widths}, {first.steps:,} steps of {first.batch:,} inputs, "
            f"{_about_published(first)}. Half way the students' errors were "
            f"{min(falling):.2f} to {max(falling):.2f} times as large as at the end."
        ),
        (
            f"Intervals are Student's over {seeds} seeds, 95 % each, and Welch's between widths; a "
            "seed draws target, student and inputs."
        ),
        *_about_power(summaries),
        "Inputs are Gaussian. Nothing here is a trained transformer.",
    ]


def _about_published(run: BasisRun) -> str:
    if (run.steps, run.batch) == PUBLISHED_INPUTS:
        return "as published"
    steps, batch = PUBLISHED_INPUTS
    return f"where the paper has {steps:,} of {batch:,}"


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
    known = sorted(
        size for one in estimates if (size := find_detectable(one, power=POWER)) is not None
    )
    if not known:
        return ""
    low, high = (numbers.fixed(100 * size, 2) for size in (known[0], known[-1]))
    return f"{low} points" if low == high else f"{low} to {high} points"


def readings_table() -> Table:
    """What each reading computes."""
    return Table(
        key="readings",
        title="Readings of the target, h = 4 d",
        columns=(
            Column(key="target", title="target", numeric=False),
            Column(key="formula", title="formula", numeric=False),
        ),
        rows=tuple((plain(name), plain(target.formula)) for name, target in TARGETS.items()),
    )


def _low(estimate: Estimate) -> float:
    return 0.0 if estimate.low is None else estimate.low
