"""Reads the records for the papers' figures: runs in a folder, or tables of reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from qkvary.papers.kept_tables import find_table, find_tables, read_rows
from qkvary.reports.attention_maps import RunAttention
from qkvary.reports.samples import RunSamples
from qkvary.reports.study_results import gather_results
from qkvary.storage.errors import DamagedError
from qkvary.studies.catalog import load_study
from qkvary.studies.results.summary import LearningCurve
from qkvary.studies.running.store import Store
from qkvary.studies.study import Setting, Study

_CURVE_COLUMNS = {
    *("setting", "variant", "quantity", "step", "seconds", "mean", "low", "high", "runs"),
}
_PRINTED_COLUMNS = {"variant", "column", "published", "ours"}


class Printed(NamedTuple):
    """A number that a paper prints, next to the number from this project's runs."""

    table: str
    """The name of the published table."""
    variant: str
    column: str
    published: float
    ours: float
    note: str = ""
    """A note on differences between the two experiments; empty if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecords:
    """The results of a study's runs: learning curves, numbers, attention maps and samples."""

    study: Study
    curves: tuple[LearningCurve, ...] = ()
    printed: tuple[Printed, ...] = ()
    attention: tuple[RunAttention, ...] = ()
    samples: tuple[RunSamples, ...] = ()
    damage: tuple[str, ...] = ()
    """One sentence per unreadable run."""

    def settings(self, task: str, where: Mapping[str, str]) -> list[Setting]:
        """Return the settings of a task whose fields have the values in ``where``."""
        return [
            setting
            for setting in self.study.settings
            if setting.task.name == task
            and all(getattr(setting.task, name) == value for name, value in where.items())
        ]


def read_records(name: str, store: Store, tables: Path | None) -> StudyRecords:
    """Return the records of a study, from a store or from the tables of its report.

    The tables are read only if the store has no run of the study. They contain no attention maps
    and no pictures.
    """
    study = load_study(name)
    # A study may have thousands of keys; without runs, none of them is needed.
    if store.keys() and any(store.state(cell.run_key) != "open" for cell in study.cells()):
        results = gather_results(study, store)
        printed = [
            Printed(one.name, cell.variant, cell.column, cell.published, cell.ours, cell.note)
            for one in results.summary.published
            for cell in one.cells
            if cell.published is not None and cell.ours is not None
        ]
        return StudyRecords(
            study=study,
            curves=results.summary.curves,
            printed=tuple(printed),
            attention=results.attention,
            samples=results.samples,
            damage=results.damage,
        )
    folder = None if tables is None else find_tables(tables, name)
    curves = None if folder is None else find_table(folder, "curves")
    if folder is None or curves is None:
        return StudyRecords(study=study)
    return StudyRecords(study=study, curves=_read_curves(curves), printed=_read_printed(folder))


def _read_curves(path: Path) -> tuple[LearningCurve, ...]:
    points: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in read_rows(path, _CURVE_COLUMNS):
        place = (row["setting"], row["variant"], row["quantity"])
        points.setdefault(place, []).append(row)
    try:
        return tuple(
            LearningCurve(
                setting=setting,
                variant=variant,
                quantity=quantity,
                steps=tuple(int(row["step"]) for row in rows),
                seconds=_column(rows, "seconds"),
                mean=_column(rows, "mean"),
                low=_column(rows, "low"),
                high=_column(rows, "high"),
                runs=tuple(int(row["runs"]) for row in rows),
            )
            for (setting, variant, quantity), rows in points.items()
        )
    except ValueError as error:
        raise DamagedError(f"expected numbers in {path}: {error}") from None


def _column(rows: Sequence[Mapping[str, str]], name: str) -> tuple[float, ...]:
    return tuple(float(row[name] or "nan") for row in rows)


def _read_printed(folder: Path) -> tuple[Printed, ...]:
    found: list[Printed] = []
    for path in sorted(folder.glob("published-*.csv")):
        _, _, table = path.stem.removeprefix("published-").partition("-")
        for row in read_rows(path, _PRINTED_COLUMNS):
            if row["published"] and row["ours"]:
                try:
                    published, ours = float(row["published"]), float(row["ours"])
                except ValueError as error:
                    raise DamagedError(f"expected numbers in {path}: {error}") from None
                variant, column, note = row["variant"], row["column"], row.get("note", "")
                found.append(Printed(table, variant, column, published, ours, note))
    return tuple(found)
