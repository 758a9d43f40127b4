"""Train the networks of a study, round their caches in every way, and write a page about it."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from qkvary.cli._options import DEFAULT_OUT, DEFAULT_WHERE, Json, Out, Where, choose_study
from qkvary.cli._output import console, print_json, print_rows
from qkvary.reports.catalog import load_scale_figure
from qkvary.reports.decode_writing import check_folder
from qkvary.reports.scale_page import scale_files, times
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.storage.environment import machine, now
from qkvary.storage.errors import UsageError
from qkvary.studies.catalog import load_scale_measurement
from qkvary.studies.running.runner import RunnerOptions, run_study
from qkvary.studies.running.store import Store
from qkvary.studies.scale_records import ScaleStudy
from qkvary.studies.study import Study

DEFAULT_STUDY = "quantization"
FOLDER = "figures"

Name = Annotated[
    str, Parameter(help="A study of characters that keeps its networks, by name or by path.")
]
To = Annotated[Path, Parameter(name="--to", help="Folder of the page, its tables and its picture.")]
Windows = Annotated[
    int, Parameter(name="--windows", help="Windows of held-out text for each network.")
]
Workers = Annotated[
    int | None,
    Parameter(name="--workers", help="Processes that train; by default one for each processor."),
]


def command(
    study: Name = DEFAULT_STUDY,
    /,
    *,
    where: Where = DEFAULT_WHERE,
    workers: Workers = None,
    windows: Windows = 16,
    out: Out = DEFAULT_OUT,
    to: To = Path("studies/quantization"),
    json_output: Json = False,
) -> int:
    """Train the networks of a study, round their caches in every way, and write a page about it.

    Networks that are trained or measured already are not trained or measured again.
    """
    chosen, store, screen = choose_study(study, where), Store(out), console(sys.stderr)
    if windows < 1:
        raise UsageError(f"expected at least 1 window, got {windows}")
    if not all(setting.keep_networks for setting in chosen.settings):
        raise UsageError(f"expected a study that keeps its networks, got {chosen.name}")
    # Before hours of training: what only the end needs.
    draw = load_scale_figure()
    check_folder(to, "--to")
    runs = run_study(chosen, store, RunnerOptions(workers=workers), console=screen)
    if runs.exit_code or runs.missing or runs.failed or runs.diverged:
        raise UsageError(
            f"expected {runs.planned} trained networks, got {runs.done}; qkvary status {study} "
            "says what became of the others"
        )
    made = _measure(chosen, store, windows, tell=lambda text: screen.print(text, markup=False))
    files = {
        **scale_files(made),
        **{f"{FOLDER}/{name}": data for name, data in draw(made, ["svg"]).items()},
    }
    for name, data in files.items():
        make_directory((to / name).parent)
        atomic_write_file(to / name, data)
    if json_output:
        print_json(
            {
                "study": made.name,
                "ratios": made.ratios(),
                "storages": made.summaries(),
                "files": [to / name for name in files],
            }
        )
    else:
        _print(made, to)
    return 0


def _measure(
    study: Study, store: Store, windows: int, *, tell: Callable[[str], None]
) -> ScaleStudy:
    started = now()
    records = tuple(load_scale_measurement()(study, store, windows=windows, tell=tell))
    losses: dict[str, list[float]] = {}
    for cell in study.cells():
        record = store.record(cell.run_key)
        loss = None if record is None else record.headline
        losses.setdefault(cell.variant, []).append(float("nan") if loss is None else loss)
    return ScaleStudy(
        name=study.name,
        question=study.question,
        description=study.description,
        command="qkvary bench scales"
        + ("" if study.name == DEFAULT_STUDY else f" {study.name}")
        + f" --seeds {','.join(map(str, study.seeds))}",
        environment=machine(),
        started=started,
        ended=now(),
        losses={variant: tuple(found) for variant, found in losses.items()},
        seeds=study.seeds,
        windows=records[0].figures["windows"],
        context=records[0].figures["context"],
        records=records,
    )


def _print(study: ScaleStudy, to: Path) -> None:
    columns = (
        ("comparison, mean KL times", "left"),
        ("network", "left"),
        ("bits", "right"),
        ("times", "right"),
        ("supported", "left"),
    )
    rows = [
        (one.what, one.where, str(one.bits), times(one.log), one.verdict) for one in study.ratios()
    ]
    screen = console()
    print_rows(screen, columns, rows)
    screen.print(f"page: {to / 'README.md'}", markup=False)
