"""Write the report of a study: one page, tables (CSV, Markdown) and figures (SVG, PDF, PNG)."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from qkvary.api.training_texts import write_texts
from qkvary.cli._options import (
    DEFAULT_OUT,
    DEFAULT_PART,
    Json,
    Out,
    Part,
    choose_study,
    complete_study,
)
from qkvary.cli._output import show
from qkvary.cli._streams import print_error
from qkvary.cli._trainings import choose_training
from qkvary.reports.report import DEFAULT_FORMATS, ReportFormat
from qkvary.reports.study import study_report
from qkvary.reports.study_results import gather_results, report_folder
from qkvary.reports.training import training_report
from qkvary.storage.durable import check_folder
from qkvary.storage.errors import UsageError
from qkvary.studies.running.store import Store
from qkvary.studies.running.trainings import describe_older, page_name
from qkvary.text import names

StudyName = Annotated[
    str,
    Parameter(
        help="A study by its name, a Python file with a STUDY by its path, or a "
        "training: 'train lm-10m on mine'.",
        completer=complete_study,
    ),
]
Formats = Annotated[
    tuple[ReportFormat, ...],
    Parameter(name="--format", help="Format to write; repeat it for more."),
]
Target = Annotated[
    Path | None,
    Parameter(name="--to", help="Folder of the report; by default OUT/reports/NAME."),
]


def command(
    study: StudyName,
    /,
    *,
    part: Part = DEFAULT_PART,
    out: Out = DEFAULT_OUT,
    to: Target = None,
    formats: Formats = DEFAULT_FORMATS,
    json_output: Json = False,
) -> None:
    """Write the report of a study: one page, tables (CSV, Markdown) and figures (SVG, PDF, PNG)."""
    store = Store(out)
    if to is not None:
        check_folder(to)
    training = choose_training(store, study, part)
    chosen = choose_study(study, part) if training is None else training.study
    results, name = gather_results(chosen, store, part.typed(study, chosen)), chosen.name
    if training is not None:
        commands = (*training.commands, shlex.join(["qkvary", "report", study]))
        results = replace(results, summary=replace(results.summary, commands=commands))
        name = page_name(store, chosen)
        older = describe_older(store, training) if study == chosen.name else ()
        if older:
            print_error(f"{study} is the newest of {len(older) + 1}; older: {names.listed(older)}")
    if not results.is_begun:
        command = training.commands[0] if training else f"qkvary study {study}"
        raise UsageError(f"expected runs of {study} in {out}, got none: run `{command}` first")
    folder = report_folder(name, out) if to is None else to
    if training is None:
        shown = study_report(results.summary, results.attention, results.samples)
    else:
        texts = write_texts(chosen, store)
        shown = training_report(results.summary, texts, results.attention)
    show(shown, json_output=json_output, target=folder, formats=formats, damage=results.damage)
    for sentence in results.damage:
        print_error(sentence)
