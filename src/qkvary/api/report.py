"""Write the report of a study: one page, tables (CSV, Markdown) and figures (SVG, PDF, PNG)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qkvary.api.arguments import verb
from qkvary.api.options import PART, AnyStudy, Formats, Part, choose_runs
from qkvary.api.results import Result, add_data
from qkvary.data.checkpoint_names import RUNS
from qkvary.reports.report import DEFAULT_FORMATS
from qkvary.storage.durable import check_folder, is_writable
from qkvary.storage.errors import UsageError
from qkvary.storage.untrusted_files import read_name
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study
from qkvary.text import names

if TYPE_CHECKING:
    from qkvary.studies.results.summary import Summary


@verb
def report(
    study: AnyStudy,
    *,
    part: Part = PART,
    out: Path = RUNS,
    to: Path | None = None,
    formats: Formats = DEFAULT_FORMATS,
) -> "Result[Summary]":
    """Write the report of a study: one page, tables (CSV, Markdown) and figures (SVG, PDF, PNG).

    Args:
        study: A study by its name, a Python file with a STUDY by its path, or a training: 'train
            lm-10m on mine'. In Python also a ``qk.Study``.
        part: The part of the study.
        out: Folder of runs and reports.
        to: Folder of the report; by default OUT/reports/NAME.
        formats: Format to write (can be repeated).

    Raises:
        ValueError: if there is no such study, or none of its runs has begun.
    """
    from qkvary.api.training_result import report_training
    from qkvary.reports.files import write_report
    from qkvary.reports.study import study_report
    from qkvary.reports.study_results import gather_results, report_folder

    store, expected = Store(out), "the name of a study or the path of its file"
    typed = study.name if isinstance(study, Study) else read_name(study, expected)
    if to is not None:
        check_folder(to)
    chosen, training = choose_runs(store, study, part)
    name = chosen.name
    commands: Sequence[str] = part.write_commands(study, chosen.seeds, out)
    if training is not None:
        commands = (*training.commands, part.write_command("report", study, out))
    results = gather_results(chosen, store, commands)
    notices: list[str] = []
    if training is not None:
        name = training.page_name
        older = training.describe_older() if typed == chosen.name else ()
        if older:
            notices += [f"{typed} is the newest of {len(older) + 1}; older: {names.listed(older)}"]
    if not results.is_begun:
        raise UsageError(f"expected runs of {typed} in {out}, got none: run `{commands[0]}` first")
    if training is None:
        shown = study_report(results.summary, results.attention, results.samples)
    else:
        shown = report_training(chosen, store, results)
    folder = report_folder(name, out) if to is None else to
    is_written = to is not None or is_writable(out)
    if not is_written:
        notices.append(f"{out} is read-only, so no page is written: choose a folder with --to")
    return Result(
        results.summary,
        add_data(shown, damage=results.damage),
        files=write_report(shown, folder, formats) if is_written else (),
        notices=(*notices, *results.damage),
    )
