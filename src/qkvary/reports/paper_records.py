"""The records that the papers' figures are drawn from: runs in a folder, or tables of reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qkvary.reports.attention_maps import AttentionMaps
from qkvary.reports.kept_tables import read_rows
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A printed figure, and ours."""

    table: str
    """The name of the published table."""
    variant: str
    column: str
    published: float
    ours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecords:
    """The records of a study."""

    study: Study
    curves: tuple[LearningCurve, ...] = ()
    printed: tuple[Printed, ...] = ()
    attention: tuple[AttentionMaps, ...] = ()
    samples: tuple[RunSamples, ...] = ()
    damage: tuple[str, ...] = ()
    """One sentence per unreadable run."""

    def settings(self, task: str, where: Mapping[str, str]) -> list[Setting]:
        """Return the settings of a task whose fields have some values."""
        return [
            setting
            for setting in self.study.settings
            if setting.task.name == task
            and all(getattr(setting.task, name) == value for name, value in where.items())
        ]


def read_records(name: str, store: Store, tables: Path | None) -> StudyRecords:
    """Return the records of a study.

    Args:
        name: The study.
        store: Where its runs are.
        tables: A folder of reports, read where the store has no run of the study: the tables in
            ``NAME/tables``, which hold neither attention maps nor pictures.

    Raises:
        DamagedError: if a table is not one of a report.
        NewerFormatError: if a newer qkvary wrote a run.
    """
    study = load_study(name)
    if any(store.state(cell.run_key) != "open" for cell in study.cells()):
        results = gather_results(study, store)
        printed = [
            Printed(
                table=one.name,
                variant=cell.variant,
                column=cell.column,
                published=cell.published,
                ours=cell.ours,
            )
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
    folder = None if tables is None else tables / name / "tables"
    if folder is None or not (folder / "curves.csv").is_file():
        return StudyRecords(study=study)
    return StudyRecords(
        study=study, curves=_read_curves(folder / "curves.csv"), printed=_read_printed(folder)
    )


def _read_curves(path: Path) -> tuple[LearningCurve, ...]:
    points: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in read_rows(path, _CURVE_COLUMNS):
        place = (row["setting"], row["variant"], row["quantity"])
        points.setdefault(place, []).append(row)
    try:
        return tuple(_curve(*place, rows) for place, rows in points.items())
    except ValueError as error:
        raise DamagedError(f"expected numbers in {path}: {error}") from None


def _curve(
    setting: str, variant: str, quantity: str, rows: Sequence[Mapping[str, str]]
) -> LearningCurve:
    seconds, mean, low, high = (
        tuple(float(row[column] or "nan") for row in rows)
        for column in ("seconds", "mean", "low", "high")
    )
    return LearningCurve(
        setting=setting,
        variant=variant,
        quantity=quantity,
        steps=tuple(int(row["step"]) for row in rows),
        seconds=seconds,
        mean=mean,
        low=low,
        high=high,
        runs=tuple(int(row["runs"]) for row in rows),
    )


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
                found.append(
                    Printed(
                        table=table,
                        variant=row["variant"],
                        column=row["column"],
                        published=published,
                        ours=ours,
                    )
                )
    return tuple(found)
