"""Makes runs one after the other in this process, or together with others that torchrun started.

The first process claims runs from the store as a worker does and writes what is written; it tells
the others by number which run they make with it, and at last that there is none left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from qkvary.inference.decoding import generate
from qkvary.inference.samples import TextSampler
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.studies.running.messages import Job, News
from qkvary.studies.running.store import Claim, Store
from qkvary.studies.running.worker import load_cell_task, make
from qkvary.studies.running.workloop import Made, Surroundings, Worker
from qkvary.studies.study import Cell
from qkvary.text.names import slug
from qkvary.training.config import Way
from qkvary.training.distribution import Distribution
from qkvary.training.loop import train
from qkvary.training.tensorboard import TensorBoardLog

NO_MORE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """What is wanted to see of runs while they are made."""

    tell: Callable[[News], None]
    """Takes news of the runs."""
    on_log: Callable[[Cell, Mapping[str, JsonValue]], None]
    """Takes every entry of a run's log."""
    prompt: str | None = None
    """What the network continues at each validation; None asks it nothing."""
    board: Path | None = None
    """Where TensorBoard finds the logs; None for nowhere."""


def start_worker(
    job: Job, distribution: Distribution, watching: Watching, way: Way | None = None
) -> Worker:
    """Return the worker of the first process: ``stop`` it from anywhere, ``work`` it once.

    Whatever error it ends with leaves a run as it is, to be gone on with. The others notice that
    the first process is gone.

    Args:
        job: The runs.
        distribution: The processes that train each of them together.
        watching: What is wanted to see.
        way: How runs go on, where it is another way than they were begun in.
    """
    numbers = {cell.run_key: number for number, cell in enumerate(job.cells)}

    def make_together(cell: Cell, claim: Claim, surroundings: Surroundings) -> Made | None:
        sampler, board = _sampler(cell, watching.prompt), None
        if watching.board is not None:
            board = TensorBoardLog(watching.board / slug(cell.title) / cell.run_key[:8])
        _announce(distribution, numbers[cell.run_key])

        def on_log(entry: Mapping[str, JsonValue]) -> None:
            watching.on_log(cell, entry)
            if board is not None:
                board.write(entry)

        try:
            watchers = replace(surroundings.watchers, on_log=on_log, sample=sampler)
            around = replace(surroundings, watchers=watchers)
            made = make(cell, claim, around, distribution, way)
        finally:
            if board is not None:
                board.close()
        if made is None:
            # Another process may have been asked to stop, and not this one.
            worker.stop()
        return made

    worker = Worker(job, make_together, watching.tell, records_failures=False)
    return worker


def _sampler(cell: Cell, prompt: str | None) -> TextSampler | None:
    if prompt is None:
        return None
    tokenizer = load_cell_task(cell.run.task).tokenizer
    if tokenizer is None:
        raise UsageError(f"expected a task about text for samples, got {cell.run.task.name}")
    return TextSampler(tokenizer, prompt, most=cell.run.task.sequence_length)


def end_together(distribution: Distribution) -> None:
    """Tell the others that no run is left; the first process says it, whatever happened."""
    _announce(distribution, NO_MORE)


def follow(
    job: Job, distribution: Distribution, *, stop: Callable[[], bool], way: Way | None = None
) -> None:
    """Be one of the others: make each run that the first process announces, until none is left.

    Args:
        job: The same runs as the first process has.
        distribution: The processes that train them.
        stop: Whether this process was asked to stop; all of them then do.
        way: As for the first process.
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
            way=way,
            generate=generate,
        )


def _announce(distribution: Distribution, number: int | None = None) -> int:
    """Agree on a number that one process knows; it is shifted, so that silence adds nothing."""
    (agreed,) = distribution.add([0.0 if number is None else float(number + 2)])
    return round(agreed) - 2
