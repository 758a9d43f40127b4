"""Reads the tables of stored reports in a folder such as ``studies``.

The tables of a study are in ``STUDY/tables`` or ``GROUP/STUDY/tables``. A table is a file
``NAME.csv`` or ``NAME.csv.xz``.
"""

import csv
import glob
import io
import lzma
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from qkvary.arch.labels import parse_label
from qkvary.arch.models import as_model
from qkvary.costs.parameters import model_parameters
from qkvary.papers.claim import ByStudy
from qkvary.papers.kept_figures import KeptFigure
from qkvary.reports.tables import read_csv_field
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import read_file
from qkvary.studies.catalog import load_study
from qkvary.studies.results.statistics import wilson

LARGEST_TABLE = 2**26
"""Maximum size of a table of a report, in bytes."""
STEPS = "steps_to_solve"
"""Name of the quantity in the table ``solving``: the steps until a task is solved."""
DIVERGED = "diverged"
"""Name of the quantity for the share of runs that diverged or failed."""

Row = Mapping[str, str]


def find_tables(folder: Path, study: str) -> Path | None:
    """Return the folder with the tables of a study, or None if there is none in ``folder``."""
    name = glob.escape(study)
    found = [*folder.glob(f"{name}/tables"), *sorted(folder.glob(f"*/{name}/tables"))]
    return found[0] if found else None


def find_table(tables: Path, name: str) -> Path | None:
    """Return the file of a table, or None if there is none."""
    files = (tables / f"{name}.csv", tables / f"{name}.csv.xz")
    return next((path for path in files if path.is_file()), None)


def read_rows(path: Path, wanted: Collection[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV table, which must have the ``wanted`` columns."""
    try:
        data = read_file(path, limit=LARGEST_TABLE)
        if path.suffix == ".xz":
            data = lzma.LZMADecompressor().decompress(data, LARGEST_TABLE)
        reader = csv.DictReader(io.StringIO(data.decode("utf-8")), strict=True)
        rows, columns = list(reader), set(reader.fieldnames or ())
    except (UnicodeDecodeError, csv.Error, lzma.LZMAError) as error:
        raise DamagedError(f"expected a table of a report in {path}: {error}") from None
    if not set(wanted) <= columns or any(None in row or None in row.values() for row in rows):
        raise DamagedError(
            f"expected a table of a report in {path}, got a table that lacks required columns or "
            "has uneven rows"
        )
    return [{name: read_csv_field(value) for name, value in row.items()} for row in rows]


def read_kept(folder: Path, judge: ByStudy) -> KeptFigure | None:
    """Return the figure for a judge, or None if the tables do not contain it."""
    tables = find_tables(folder, judge.study)
    if tables is None:
        return None
    read = _count_diverged if judge.quantity == DIVERGED else _read_figure
    try:
        return read(tables, judge, tables.parent.relative_to(folder).as_posix())
    except ValueError as error:
        raise DamagedError(f"expected numbers in the tables of {tables}: {error}") from None


def _read_figure(tables: Path, judge: ByStudy, folder: str) -> KeptFigure | None:
    for name, beside in _places(judge):
        path = find_table(tables, name)
        wanted = {"table": judge.table, "variant": judge.variant, **beside}
        rows = read_rows(path, ()) if path else []
        found = [row for row in rows if wanted.items() <= row.items()]
        if found:
            row, unit = found[0], "_steps" if judge.quantity == STEPS else ""
            paired = name in ("contrasts", "results")
            return KeptFigure(
                value=float(row["value" if name == "figures" else f"difference{unit}"]),
                low=_number(row, f"low{unit}"),
                high=_number(row, f"high{unit}"),
                detectable=_number(row, "detectable"),
                runs=int(row["pairs" if paired else "runs"]),
                paired=paired,
                folder=folder,
                parameters=_own_parameters(row) or _parameters(tables, judge),
            )
    return None


def _places(judge: ByStudy) -> Sequence[tuple[str, dict[str, str]]]:
    """Return the tables that may contain a figure, and the cells that identify its row in each."""
    if judge.quantity == STEPS:
        return [("solving", {})]
    metric = {"metric": judge.quantity} if judge.quantity else {}
    return [
        ("contrasts", {"reference": judge.reference, **metric}),
        ("results", {"baseline": judge.reference, **metric}),
        ("figures", {"reference": judge.reference, "quantity": judge.quantity}),
    ]


def _count_diverged(tables: Path, judge: ByStudy, folder: str) -> KeptFigure | None:
    """Return the share of runs that diverged or failed, with Wilson's interval."""
    path = find_table(tables, "runs")
    if path is None:
        return None
    # A run that covers two settings has two rows.
    states = {row["run_key"]: row["state"] for row in read_rows(path, {"state", "run_key"})}
    ended = [state for state in states.values() if state in ("done", "diverged", "failed")]
    bad = sum(state != "done" for state in ended)
    low, high = wilson(bad, len(ended)) or (None, None)
    return KeptFigure(
        value=bad / len(ended) if ended else 0.0,
        low=low,
        high=high,
        detectable=None,
        runs=len(ended),
        paired=False,
        folder=folder,
        parameters=_parameters(tables, judge),
    )


def _own_parameters(row: Row) -> tuple[int, int] | None:
    """Return the smallest and largest parameter counts in a row, or None if they are missing."""
    least, most = row.get("parameters_least"), row.get("parameters_most")
    return (int(least), int(most)) if least and most else None


def _parameters(tables: Path, judge: ByStudy) -> tuple[int, int] | None:
    """Return the smallest and largest parameter counts of the networks in a comparison."""
    path = find_table(tables, "costs")
    if path is None:
        return None
    rows = read_rows(path, {"variant", "task", "parameters_total"})
    # A contrast between settings names them after its variants.
    labels = {name.partition(" (")[0] for name in (judge.variant, judge.reference)}
    if sizes := _sizes(tables, judge, labels):
        return min(sizes), max(sizes)
    own = [row for row in rows if row["variant"] in labels] or rows
    near = [row for row in own if judge.table in row["task"] or row["task"] in judge.table]
    found = [int(float(row["parameters_total"])) for row in near or own if row["parameters_total"]]
    return (min(found), max(found)) if found else None


def _sizes(tables: Path, judge: ByStudy, labels: Collection[str]) -> list[int]:
    """Return the parameter counts of a figure's networks, if its settings have several networks.

    If all settings have the same network, the list is empty. The counts are derived from the
    study, because the table ``costs`` has only means.
    """
    path = find_table(tables, "runs")
    try:
        study = load_study(judge.study)
    except UsageError:
        return []
    if path is None:
        return []
    ran = {row["setting"] for row in read_rows(path, {"setting"})}
    names = {judge.table, *judge.table.removeprefix("average of ").split(", ")}
    settings = [
        one
        for one in study.settings
        if one.name in ran and names & {one.name, one.table or one.task.name}
    ]
    if len({one.network for one in settings}) < 2:
        return []
    baseline = parse_label(study.baseline)
    networks = (
        one.network_of(parse_label(label), baseline)
        for one in settings
        for label in study.variants
        if label in labels
    )
    return [model_parameters(as_model(one)).total for one in networks]


def _number(row: Row, column: str) -> float | None:
    text = row.get(column, "")
    return float(text) if text else None
