"""Runs that were begun in another way than they are asked for now. Torch-free.

How a step is computed changes its last bits, so it is a part of what names a run. Whoever comes
with fewer threads, another device or smaller parts of a batch does not want to begin anew all the
same: such a run may be gone on with, and says so.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Literal, cast

from qkvary.arch.canonical import from_dict
from qkvary.storage.jsonvalues import decode
from qkvary.storage.rotation import stored_steps
from qkvary.studies.running.recording import run_identity
from qkvary.studies.running.store import CHECKPOINTS_NAME, CONFIG_NAME, Store
from qkvary.studies.study import Cell, Study
from qkvary.training.config import ExecutionSettings, RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Sibling:
    """A run that differs from one that is asked for in how it is computed only."""

    cell: Cell
    """The one that is asked for."""
    run_key: str
    """Of the one that was begun."""
    execution: ExecutionSettings
    """How it was."""
    step: int
    """Of its newest checkpoint; 0 where a run is done and has none."""

    @property
    def differences(self) -> str:
        """What is different, as options: how it was begun."""
        changed = self.execution.differences(self.cell.run.execution)
        return ", ".join(_option(name, begun) for name, (begun, _) in changed.items())


def find_sibling(
    store: Store, study: Study, *, state: Literal["open", "done"] = "open"
) -> Sibling | None:
    """Return the one that is furthest on; None where the runs themselves were begun, or none was.

    Args:
        store: Where runs are.
        study: The runs that are asked for.
        state: Where its siblings stand.
    """
    cells = study.cells()
    if any(_is_begun(store, cell.run_key) for cell in cells):
        return None
    wanted = {_without_way(run_identity(cell.run)): cell for cell in cells}
    found: list[Sibling] = []
    keys = store.keys()
    for key in keys:
        step = _newest(store, key)
        if store.state(key) != state or (step is None and state == "open"):
            continue
        named = _read(store, key)
        cell = None if named is None else wanted.get(named[0])
        if named is not None and cell is not None:
            found.append(Sibling(cell=cell, run_key=key, execution=named[1], step=step or 0))
    return max(found, key=lambda one: one.step, default=None)


def with_execution(study: Study, execution: ExecutionSettings) -> Study:
    """The same study, whose runs are those that were begun in that way."""
    settings = tuple(
        dataclasses.replace(
            setting, training=dataclasses.replace(setting.training, execution=execution.config)
        )
        for setting in study.settings
    )
    return dataclasses.replace(study, settings=settings, device=execution.device)


def _is_begun(store: Store, key: str) -> bool:
    return store.state(key) != "open" or _newest(store, key) is not None


def _newest(store: Store, key: str) -> int | None:
    return max(stored_steps(store.directory(key) / CHECKPOINTS_NAME), default=None)


def _read(store: Store, key: str) -> tuple[str, ExecutionSettings] | None:
    """What a run is, and how it was begun; None where nobody can tell: it is no sibling then."""
    try:
        data = (store.directory(key) / CONFIG_NAME).read_bytes()
        identity = cast("dict[str, Any]", decode(data))
        return _without_way(identity), from_dict(RunConfig, identity["run"]).execution
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _without_way(identity: dict[str, Any]) -> str:
    run = identity["run"]
    training = {name: value for name, value in run["training"].items() if name != "execution"}
    task = {name: value for name, value in run["task"].items() if name != "data"}
    rest = {
        name: value for name, value in run.items() if name not in ("device", "training", "task")
    }
    named = (rest, training, task, identity["data_fingerprint"], identity["numerics_version"])
    return json.dumps(named, sort_keys=True)


def _option(name: str, value: object) -> str:
    option = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return option if value else f"no {option}"
    return f"no {option}" if value is None else f"{option} {value}"
