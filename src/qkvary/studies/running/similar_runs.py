"""Finds runs that differ from the requested ones only in their execution settings. Torch-free.

Execution settings change the last bits of a step, so they are part of a run's identity. A run can
still be resumed with fewer threads, on another device or with smaller micro-batches; its log then
records the change.
"""

import json
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from qkvary.arch.canonical import from_dict
from qkvary.storage.checkpoint_folders import stored_steps
from qkvary.storage.jsonvalues import decode
from qkvary.studies.running.records import run_identity
from qkvary.studies.running.store import CHECKPOINTS_NAME, CONFIG_NAME, Store
from qkvary.studies.study import Cell, Study
from qkvary.training.config import ExecutionSettings, RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarRun:
    """A stored run that differs from a requested one only in its execution settings."""

    cell: Cell
    """The requested run."""
    run_key: str
    """Key of the stored run."""
    execution: ExecutionSettings
    """Execution settings of the stored run."""
    step: int
    """Step of its newest checkpoint; 0 if it is done and has none."""

    @property
    def differences(self) -> str:
        """The differing settings of the stored run, as options of the command line."""
        changed = self.execution.differences(self.cell.run.execution)
        return ", ".join(_option(name, stored) for name, (stored, _) in changed.items())


def find_similar_run(
    store: Store, study: Study, *, state: Literal["open", "done"] = "open"
) -> SimilarRun | None:
    """Return the most advanced similar run; None if there is none or a requested run has started.

    Args:
        store: The store of runs.
        study: The requested runs.
        state: State of the similar runs.
    """
    keys = store.keys()
    if not keys:
        return None
    cells = study.cells()
    requested = [cell.run_key for cell in cells]
    if any(store.state(key) != "open" or _newest(store, key) is not None for key in requested):
        return None
    wanted = {_identity_without_execution(run_identity(cell.run)): cell for cell in cells}
    found: list[SimilarRun] = []
    for key in keys:
        step = _newest(store, key)
        if store.state(key) != state or (step is None and state == "open"):
            continue
        named = _read(store, key)
        cell = None if named is None else wanted.get(named[0])
        if named is not None and cell is not None:
            found.append(SimilarRun(cell=cell, run_key=key, execution=named[1], step=step or 0))
    return max(found, key=lambda one: one.step, default=None)


def with_execution(study: Study, execution: ExecutionSettings) -> Study:
    """Return the study with other execution settings."""
    settings = tuple(
        replace(setting, training=replace(setting.training, execution=execution.config))
        for setting in study.settings
    )
    return replace(study, settings=settings, device=execution.device)


def _newest(store: Store, key: str) -> int | None:
    return max(stored_steps(store.directory(key) / CHECKPOINTS_NAME), default=None)


def _read(store: Store, key: str) -> tuple[str, ExecutionSettings] | None:
    """Return identity and execution settings of a stored run; None if they cannot be read."""
    try:
        data = (store.directory(key) / CONFIG_NAME).read_bytes()
        identity = cast("dict[str, Any]", decode(data))
        execution = from_dict(RunConfig, identity["run"]).execution
        return _identity_without_execution(identity), execution
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _identity_without_execution(identity: dict[str, Any]) -> str:
    run: dict[str, Any] = {**identity["run"], "device": None}
    run["training"] = {**run["training"], "execution": None}
    run["task"] = {**run["task"], "data": None}
    named = (run, identity["data_fingerprint"], identity["numerics_version"])
    return json.dumps(named, sort_keys=True)


def _option(name: str, value: object) -> str:
    option = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return option if value else f"no {option}"
    return f"no {option}" if value is None else f"{option} {value}"
