"""Reads the results of a study from a folder of runs, for the report of the study."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from qkvary.reports.attention_maps import RunAttention
from qkvary.reports.samples import RunSamples
from qkvary.reports.tables import pick
from qkvary.storage.errors import DamagedError
from qkvary.studies.records import Record
from qkvary.studies.results.analysis import summarise
from qkvary.studies.results.summary import RunRow, Summary
from qkvary.studies.running.store import ATTENTION_NAME, SAMPLES_NAME, Store
from qkvary.studies.study import Study
from qkvary.tasks.example_files import maps_from_bytes, samples_from_bytes
from qkvary.text.names import folder_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The results of a study in a folder of runs."""

    summary: Summary
    attention: tuple[RunAttention, ...]
    """One example for each setting, variant and kind of layer. Empty if no run has examples."""
    samples: tuple[RunSamples, ...]
    """The samples of one run for each setting and variant. Empty if no run has samples."""
    damage: tuple[str, ...]
    """One sentence per unreadable run."""
    is_begun: bool
    """Whether any run has begun."""


def gather_results(study: Study, store: Store, commands: Sequence[str] = ()) -> Results:
    """Return the results of a study or of a part of the study.

    For unfinished runs, the results include the curves recorded so far. ``commands`` reproduce the
    runs and the report.
    """
    records: list[Record] = []
    curves: dict[str, list[dict[str, object]]] = {}
    damaged: dict[str, str] = {}
    for key in study.runs():
        try:
            record = store.record(key)
            curves[key] = store.log_events(key)
            if record is not None:
                records.append(record)
        except DamagedError as error:
            damaged[key] = str(error)
    summary = summarise(study, records, curves=curves, damaged=damaged, commands=commands)
    damage = [*damaged.values()]
    cells = {setting.name: setting.task.right_cell for setting in study.settings}

    def read_attention(data: bytes, run: RunRow) -> list[RunAttention]:
        example = maps_from_bytes(data)
        return [
            RunAttention(
                **pick(run, "setting variant seed"),
                run_key=run.run_key or "",
                maps=one.maps.astype(np.float64),
                **pick(one, "tokens targets kind"),
                right_cell=cells[run.setting],
            )
            for one in (example, *example.others)
        ]

    def read_samples(data: bytes, run: RunRow) -> list[RunSamples]:
        found = samples_from_bytes(data)
        return [RunSamples(**pick(run, "setting variant seed"), samples=found)]

    return Results(
        summary=summary,
        attention=_first_of_each(summary, store, ATTENTION_NAME, read_attention, damage),
        samples=_first_of_each(summary, store, SAMPLES_NAME, read_samples, damage),
        damage=tuple(damage),
        is_begun=bool(records or damaged or any(curves.values())),
    )


def report_folder(name: str, out: Path) -> Path:
    """Return the default folder of the report of a study or of a training run."""
    return out / "reports" / folder_name(name)


T = TypeVar("T")


def _first_of_each(
    summary: Summary,
    store: Store,
    name: str,
    read: Callable[[bytes, RunRow], list[T]],
    damage: list[str],
) -> tuple[T, ...]:
    """Return the examples of the first finished run of each setting and variant, in order."""
    found: dict[tuple[str, str], list[T]] = {}
    for run in summary.runs:
        place = (run.setting, run.variant)
        if place in found or run.run_key is None or run.state != "done" or not run.selected:
            continue
        try:
            data = store.file(run.run_key, name)
            if data is not None:
                found[place] = read(data, run)
        except DamagedError as error:
            damage.append(str(error))
    return tuple(one for some in found.values() for one in some)
