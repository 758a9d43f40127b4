"""The results of a study in a folder of runs, for its report."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qkvary.reports.attention_maps import AttentionMaps
from qkvary.storage.errors import DamagedError
from qkvary.studies.results.analysis import summarise
from qkvary.studies.results.summary import Summary
from qkvary.studies.running.attention_maps import from_bytes
from qkvary.studies.running.records import Record
from qkvary.studies.running.store import Store
from qkvary.studies.study import Study
from qkvary.text.names import folder_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The results of a study in a folder of runs."""

    summary: Summary
    """The tables."""
    attention: tuple[AttentionMaps, ...]
    """One example per setting and variant, if any."""
    damage: tuple[str, ...]
    """One sentence per unreadable run; these count as missing."""


def gather_results(study: Study, store: Store, options: str = "") -> Results:
    """Read every run of a study, unfinished ones with their curves so far.

    Args:
        study: The study, or a part of it.
        store: Where its runs are.
        options: Options of the command line that select the part.

    Raises:
        NewerFormatError: if a newer qkvary wrote one of them.
    """
    records: list[Record] = []
    curves: dict[str, list[dict[str, object]]] = {}
    damage: list[str] = []
    for key in dict.fromkeys(cell.run_key for cell in study.cells()):
        try:
            record = store.record(key)
            curves[key] = store.curve(key)
            if record is not None:
                records.append(record)
        except DamagedError as error:
            damage.append(str(error))
    summary = summarise(study, records, curves=curves, options=options)
    attention = _gather_attention(summary, store, damage)
    return Results(summary=summary, attention=attention, damage=tuple(damage))


def report_folder(name: str, out: Path) -> Path:
    """Return the default folder of the report of a study or training."""
    return out / "reports" / folder_name(name)


def _gather_attention(
    summary: Summary, store: Store, damage: list[str]
) -> tuple[AttentionMaps, ...]:
    """Return the maps of the first finished run per setting and variant, in the study's order."""
    found: dict[tuple[str, str], AttentionMaps] = {}
    for run in summary.runs:
        place = (run.setting, run.variant)
        if place in found or run.run_key is None or run.state != "done" or not run.selected:
            continue
        try:
            data = store.attention(run.run_key)
            example = None if data is None else from_bytes(data)
        except DamagedError as error:
            damage.append(str(error))
            continue
        if example is not None:
            found[place] = AttentionMaps(
                setting=run.setting,
                variant=run.variant,
                seed=run.seed,
                run_key=run.run_key,
                maps=example.maps.astype(np.float64),
                tokens=example.tokens,
                targets=example.targets,
            )
    return tuple(found.values())
