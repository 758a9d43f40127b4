"""Executes runs in this process, or in all processes that torchrun started.

Rank 0 claims runs from the store as a worker does, and writes all files. It announces the number of
each run to the other ranks, and at last that no run remains.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from qkvary.inference.decoding import generate
from qkvary.inference.samples import TextSampler
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.studies.running.messages import Job, WorkerMessage
from qkvary.studies.running.store import Claim, Store
from qkvary.studies.running.work_loop import RunContext, RunResult, Worker
from qkvary.studies.running.worker import load_cell_task, train_cell
from qkvary.studies.study import Cell
from qkvary.training.config import ExecutionSettings
from qkvary.training.distribution import Distribution
from qkvary.training.loop import train

NO_MORE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    """Monitoring of runs during training."""

    send: Callable[[WorkerMessage], None]
    """Called with the worker's messages."""
    on_log: Callable[[Cell, Mapping[str, JsonValue]], None]
    """Called with every log entry."""
    prompt: str | None = None
    """Prompt that the network continues at each validation; None for no samples."""


def make_worker(
    job: Job,
    distribution: Distribution,
    monitoring: Monitoring,
    execution: ExecutionSettings | None = None,
) -> Worker:
    """Return the worker of rank 0; call ``work`` once, and ``stop`` at any time.

    After an error the current run can be resumed. The other ranks notice the loss of rank 0.

    Args:
        job: The runs.
        distribution: The processes that train each run together.
        monitoring: Monitoring of the runs.
        execution: Execution settings, by default those of each run.
    """
    numbers = {cell.run_key: number for number, cell in enumerate(job.cells)}

    def train_together(cell: Cell, claim: Claim, context: RunContext) -> RunResult | None:
        sampler = _sampler(cell, monitoring.prompt)
        _announce(distribution, numbers[cell.run_key])

        def on_log(entry: Mapping[str, JsonValue]) -> None:
            context.callbacks.on_log(entry)
            monitoring.on_log(cell, entry)

        callbacks = replace(context.callbacks, on_log=on_log, sample=sampler)
        around = replace(context, callbacks=callbacks)
        made = train_cell(cell, claim, around, distribution, execution)
        if made is None:
            # Another process may have received the signal to stop.
            worker.stop()
        return made

    worker = Worker(job, train_together, monitoring.send, records_failures=False)
    return worker


def _sampler(cell: Cell, prompt: str | None) -> TextSampler | None:
    if prompt is None:
        return None
    tokenizer = load_cell_task(cell.run.task).tokenizer
    if tokenizer is None:
        raise UsageError(f"expected a text task for samples, got {cell.run.task.name}")
    return TextSampler(tokenizer, prompt, most=cell.run.sequence_length)


def announce_end(distribution: Distribution) -> None:
    """Announce to the other ranks that no run remains; called by rank 0 in any case."""
    _announce(distribution, NO_MORE)


def run_other_rank(
    job: Job,
    distribution: Distribution,
    *,
    stop: Callable[[], bool],
    execution: ExecutionSettings | None = None,
) -> None:
    """Train, on a rank other than 0, each run that rank 0 announces.

    Args:
        job: The runs, as on rank 0.
        distribution: The processes that train together.
        stop: Returns True if this process should stop; then all processes stop.
        execution: Execution settings, as on rank 0.
    """
    store = Store(job.store)
    while (number := _announce(distribution)) != NO_MORE:
        cell = job.cells[number]
        train(
            cell.run,
            load_cell_task(cell.run.task),
            store.directory(cell.run_key),
            stop=stop,
            checkpoint_seconds=job.checkpoint_seconds,
            keep=job.keep,
            distribution=distribution,
            execution=execution,
            generate=generate,
        )


def _announce(distribution: Distribution, number: int | None = None) -> int:
    """Broadcast a number from one process by a sum; shifted, so that None adds nothing."""
    (agreed,) = distribution.all_reduce([0.0 if number is None else float(number + 2)])
    return round(agreed) - 2
