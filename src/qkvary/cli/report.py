"""Write the report of a study: one page, tables (CSV, Markdown) and figures (SVG, PDF, PNG)."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from qkvary.cli._options import (
    DEFAULT_OUT,
    DEFAULT_WHERE,
    Json,
    Out,
    Where,
    check_device,
    choose_study,
    complete_study,
    parse_seeds,
)
from qkvary.cli._output import console, print_error, print_json, printable
from qkvary.cli._results import gather_results, report_folder
from qkvary.storage.errors import UsageError
from qkvary.studies.reports.terminal import print_summary
from qkvary.studies.reports.writing import FORMATS, ReportFormat, write_report
from qkvary.studies.store import Store
from qkvary.studies.trainings import Training, find_training

TRAINED = ("train ", "train-")
"""How the names of trainings, and of their notes, begin."""

StudyName = Annotated[
    str,
    Parameter(
        help="A study by its name, a Python file with a STUDY by its path, or what qkvary train "
        "made: 'train lm-10m on mine'.",
        completer=complete_study,
    ),
]
Formats = Annotated[
    tuple[ReportFormat, ...],
    Parameter(name="--format", negative=(), help="What to write; repeat it for more."),
]
Target = Annotated[
    Path | None,
    Parameter(name="--to", help="Folder of the report; by default OUT/reports/NAME."),
]


def command(
    study: StudyName,
    /,
    *,
    where: Where = DEFAULT_WHERE,
    out: Out = DEFAULT_OUT,
    to: Target = None,
    formats: Formats = FORMATS,
    json_output: Json = False,
) -> None:
    """Write the report of a study: one page, tables (CSV, Markdown) and figures (SVG, PDF, PNG)."""
    store = Store(out)
    training = _find_training(store, study, where)
    chosen = choose_study(study, where) if training is None else training.study
    results = gather_results(chosen, store)
    if training is not None:
        typed = (*training.commands, shlex.join(["qkvary", "report", study]))
        results = replace(results, summary=replace(results.summary, commands=typed))
    folder = report_folder(chosen, out) if to is None else to
    files = write_report(results.summary, results.attention, folder, formats)
    for sentence in results.damage:
        print_error(sentence)
    if json_output:
        print_json({"summary": results.summary, "files": files, "damage": results.damage})
        return
    screen = console()
    print_summary(results.summary, screen)
    screen.print(Text(printable(f"report: {files[0]}" if files else "nothing was written")))


def _find_training(store: Store, name: str, where: Where) -> Training | None:
    """What ``qkvary train`` was asked for under a name; None for a name that is none of its."""
    if not name.startswith(TRAINED) or name.endswith(".py") or "/" in name:
        return None
    check_device(where.device)
    found = find_training(store, name)
    # How it was trained is noted: who says otherwise means runs that are not there.
    for option, asked, usual, noted in (
        ("--device", where.device, DEFAULT_WHERE.device, found.study.device),
        ("--dtype", where.dtype, DEFAULT_WHERE.dtype, found.study.dtype),
    ):
        if asked not in (usual, noted):
            raise UsageError(f"expected {option} {noted}, as {name!r} was trained, got {asked}")
    seeds = found.study.seeds if where.seeds is None else parse_seeds(where.seeds)
    return replace(found, study=replace(found.study, seeds=seeds))
