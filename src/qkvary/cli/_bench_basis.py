"""Train the students of paper 3's transfer of a basis, and write a page about them."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from qkvary.cli._options import DEFAULT_OUT, Json, Out, parse_seeds
from qkvary.cli._output import console, print_json, print_rows
from qkvary.reports.catalog import load_basis_page
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.storage.environment import machine
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import decode, encode
from qkvary.studies.basis_transfer import (
    BasisRecord,
    BasisRun,
    BasisSummary,
    from_json,
    plan_runs,
    summarise_basis,
    to_json,
)
from qkvary.studies.catalog import load_basis_measurement
from qkvary.studies.results.statistics import Estimate

FOLDER = "basis"
"""Below the folder of runs: a file for each run."""
LARGEST_WIDTH = 4_096

Seeds = Annotated[
    str, Parameter(name=("--seeds", "--seed"), help="Seeds such as 7 or 0,1,2 or 0-4.")
]
Widths = Annotated[str, Parameter(name="--widths", help="Widths of input and output: 16,32,64.")]
Steps = Annotated[int, Parameter(name="--steps", help="Training steps of each student.")]
To = Annotated[Path, Parameter(name="--to", help="Folder of the README, the page and the records.")]


def command(
    *,
    widths: Widths = "16,32,64",
    seeds: Seeds = "0-4",
    steps: Steps = 4_000,
    out: Out = DEFAULT_OUT,
    to: To = Path("studies/mlp-basis-transfer"),
    json_output: Json = False,
) -> int:
    """Train the students of paper 3's transfer of a basis, and write a page about them.

    What was run already is not run again; stop it with Ctrl-C, and the same command goes on.
    """
    if steps < 2:
        raise UsageError(f"expected at least 2 steps, got {steps}")
    runs = plan_runs(widths=_parse_widths(widths), seeds=parse_seeds(seeds), steps=steps)
    screen = console(sys.stderr)
    records = _measure(runs, out / FOLDER, tell=lambda text: screen.print(text, markup=False))
    typed = f"qkvary bench basis --widths {widths} --seeds {seeds} --steps {steps}"
    files = load_basis_page()(typed, machine(), records)
    for name, data in files.items():
        make_directory((to / name).parent)
        atomic_write_file(to / name, data)
    summaries = summarise_basis(records)
    if json_output:
        print_json({"results": summaries, "files": [to / name for name in files]})
    else:
        _print(summaries, to)
    return 0


def _parse_widths(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= LARGEST_WIDTH for part in parts):
        raise UsageError(f"expected widths such as 16,32,64 up to {LARGEST_WIDTH:,}, got {text!r}")
    return tuple(dict.fromkeys(map(int, parts)))


def _measure(
    runs: tuple[BasisRun, ...], folder: Path, *, tell: Callable[[str], None]
) -> tuple[BasisRecord, ...]:
    """The records of all runs; each is kept when it is made, and found again."""
    make_directory(folder)
    records: list[BasisRecord] = []
    for number, run in enumerate(runs, start=1):
        path = folder / f"{run.key}.json"
        record = _read(path, run)
        if record is None:
            record = load_basis_measurement()(run)
            atomic_write_file(path, f"{encode(to_json(record))}\n".encode())
            tell(f"{run.title}: {record.figures['seconds']:.1f} s [{number} of {len(runs)}]")
        records.append(record)
    return tuple(records)


def _read(path: Path, run: BasisRun) -> BasisRecord | None:
    """The record of a run, or None where there is none that can be read: it is made again then."""
    try:
        record = from_json(decode(path.read_bytes()))  # pyright: ignore[reportArgumentType]
    except (OSError, ValueError):
        return None
    return record if record.run == run else None


def _print(summaries: list[BasisSummary], to: Path) -> None:
    columns = (
        ("target", "left"),
        ("biases", "left"),
        ("d", "right"),
        ("student", "right"),
        ("linear map", "right"),
        ("infinite width", "right"),
    )
    rows = [
        (
            one.target.name,
            "with" if one.biases else "without",
            str(one.d),
            _percent(one.student),
            _percent(one.linear),
            f"{100 * one.analytic:.1f} %",
        )
        for one in summaries
    ]
    screen = console()
    print_rows(screen, columns, rows)
    screen.print(f"page: {to / 'README.md'}", markup=False)


def _percent(estimate: Estimate) -> str:
    return "-" if estimate.mean is None else f"{100 * estimate.mean:.1f} %"
