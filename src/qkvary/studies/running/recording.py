"""Creates the record of a run that has ended. Torch-free."""

from collections.abc import Mapping
from typing import Any

from qkvary.arch.canonical import to_dict
from qkvary.costs.network import network_costs
from qkvary.storage.environment import machine, now
from qkvary.studies.running.records import Record, Status
from qkvary.studies.study import Cell
from qkvary.training.config import NUMERICS_VERSION, ROUNDING_VERSION, RunConfig

NO_TIMING: Mapping[str, float] = dict.fromkeys(
    ("training_seconds", "evaluation_seconds", "total_seconds", "cpu_seconds", "steps_per_second"),
    0.0,
)


def run_identity(run: RunConfig) -> dict[str, Any]:
    """Return everything that determines the key of a run, as a store writes it."""
    return {
        "run": to_dict(run),
        "data_fingerprint": run.task.data_fingerprint,
        "numerics_version": NUMERICS_VERSION,
        "run_key": run.run_key(),
    }


def make_record(
    cell: Cell,
    *,
    status: Status,
    started: str,
    message: str = "",
    metrics: Mapping[str, float | int | None] | None = None,
    timing: Mapping[str, float] | None = None,
    environment: Mapping[str, Any] | None = None,
    state_sha256: str = "",
) -> Record:
    """Return the record of a run.

    Args:
        cell: The run.
        status: How it ended.
        started: When the last process started it.
        message: Why it failed or diverged, and what its log lacks.
        metrics: The metrics; none for a failed run.
        timing: Seconds by phase.
        environment: Facts about this run's environment beyond those of the process.
        state_sha256: Digest of the final weights and optimizer state.
    """
    run = cell.run
    costs = network_costs(run.network, length=run.sequence_length)
    return Record(
        run_key=cell.run_key,
        config=to_dict(run),
        task=run.task.name,
        variant=cell.variant,
        seed=cell.seed,
        status=status,
        message=message,
        metric=f"test_{run.task.metric}",
        higher_is_better=run.task.higher_is_better,
        metrics=metrics or {},
        costs=costs.to_dict(),
        timing=timing or NO_TIMING,
        environment={
            **machine(),
            "rounding": ROUNDING_VERSION,
            "threads": run.threads,
            **(environment or {}),
        },
        started=started,
        ended=now(),
        state_sha256=state_sha256,
    )
