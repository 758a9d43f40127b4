"""The record of a finished run, and its JSON format. Reports read only records. Torch-free."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

from qkvary.arch.canonical import to_dict
from qkvary.costs.network import network_costs
from qkvary.storage.environment import machine, now
from qkvary.storage.jsonvalues import DocumentFormat
from qkvary.studies.study import Cell
from qkvary.training.config import ROUNDING_VERSION

FORMAT = DocumentFormat(name="a record of a run", version=1, remedy="train the run again")

Status = Literal["done", "failed", "diverged"]
NO_TIMING: Mapping[str, float] = dict.fromkeys(
    ("training_seconds", "evaluation_seconds", "total_seconds", "cpu_seconds", "steps_per_second"),
    0.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The record of a run: configuration, results, costs and environment."""

    run_key: str
    config: Mapping[str, Any]
    """The run's configuration, as ``arch.canonical.to_dict`` gives it."""
    task: str
    variant: str
    seed: int
    status: Status
    """``done``, ``failed`` (an error), or ``diverged`` (a non-finite loss or gradient)."""
    message: str
    """The reason if the run failed or diverged, else empty."""
    metric: str
    """Name of the headline metric among ``metrics``, such as ``test_accuracy``."""
    higher_is_better: bool
    metrics: Mapping[str, float | int | None]
    """``test_*`` and ``validation_*`` metrics, ``steps_to_solve`` (None: not solved),
    ``final_train_loss`` and ``steps`` (completed steps)."""
    costs: Mapping[str, Any]
    """``parameters`` by part, ``macs_per_token``, ``macs_per_sequence``,
    ``cache_bytes_per_token`` (None: the network keeps no cache)."""
    timing: Mapping[str, float]
    """``training_seconds``, ``evaluation_seconds``, ``total_seconds``, ``cpu_seconds``,
    ``steps_per_second``; for language models, if it can be measured, also
    ``product_flops_per_second``, the speed of large matmuls, and ``utilization``, the share of that
    speed that training reaches."""
    environment: Mapping[str, Any]
    """Versions, commit, processor, threads and kernels."""
    started: str
    """Time at which the last process of the run began to train (ISO 8601, UTC)."""
    ended: str
    """Time at which the record was created (ISO 8601, UTC)."""
    state_sha256: str = ""
    """Digest of the final weights and optimizer state; equal for bit-identical runs."""

    @property
    def headline(self) -> float | None:
        """The headline metric, or None if the run ended before it was measured."""
        return self.metrics.get(self.metric)


def to_json(record: Record) -> bytes:
    """Return the bytes of ``record.json``, deterministically."""
    return FORMAT.write({name: getattr(record, name) for name in _kinds()})


@functools.cache
def _kinds() -> Mapping[str, type]:
    hints = get_type_hints(Record)
    plain = {name: hint if hint in (str, int, bool) else dict for name, hint in hints.items()}
    return {**plain, "status": str}


def from_json(data: bytes, *, where: str) -> Record:
    """Return the record that ``to_json`` wrote."""
    return FORMAT.read(data, where, _build)


def _build(fields: dict[str, Any]) -> Record:
    kinds = _kinds()
    wrong = sorted(kinds.keys() ^ fields.keys())
    wrong = wrong or [name for name, kind in kinds.items() if type(fields[name]) is not kind]
    if wrong:
        raise ValueError(f"fields missing, unknown or of the wrong type: {', '.join(wrong)}")
    if fields["status"] not in ("done", "failed", "diverged"):
        raise ValueError(f"unknown status {fields['status']!r}")
    return Record(**fields)


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
    """Return the record of a run."""
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
