"""Makes runs one after the other in this process, or together with others that torchrun started.

The first process claims runs from the store as a worker does and writes what is written; it tells
the others by number which run they make with it, and at last that there is none left.
"""

from __future__ import annotations

from collections.abc import Callable

from qkvary.studies.messages import Job, News
from qkvary.studies.store import Claim, Store
from qkvary.studies.study import Cell
from qkvary.studies.worker import load_cell_task, make
from qkvary.studies.workloop import Made, Surroundings, Worker
from qkvary.training.distribution import Distribution
from qkvary.training.loop import train

NO_MORE = -1


def start_worker(
    job: Job,
    distribution: Distribution,
    *,
    tell: Callable[[News], None],
    customise: Callable[[Surroundings, Cell], Surroundings] = lambda given, _cell: given,
) -> Worker:
    """Return the worker of the first process: ``stop`` it from anywhere, ``work`` it once.

    Args:
        job: The runs.
        distribution: The processes that train each of them together.
        tell: Takes news.
        customise: Adds to what a run may ask for and say.
    """
    numbers = {cell.run_key: number for number, cell in enumerate(job.cells)}

    def make_together(cell: Cell, claim: Claim, surroundings: Surroundings) -> Made | None:
        _announce(distribution, numbers[cell.run_key])
        return make(cell, claim, customise(surroundings, cell), distribution)

    return Worker(job, make_together, tell)


def end_together(distribution: Distribution) -> None:
    """Tell the others that no run is left; the first process says it, whatever happened."""
    _announce(distribution, NO_MORE)


def follow(job: Job, distribution: Distribution, *, stop: Callable[[], bool]) -> None:
    """Be one of the others: make each run that the first process announces, until none is left.

    Args:
        job: The same runs as the first process has.
        distribution: The processes that train them.
        stop: Whether this process was asked to stop; all of them then do.
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
            distribution=distribution,
        )


def _announce(distribution: Distribution, number: int | None = None) -> int:
    """Agree on a number that one process knows; it is shifted, so that silence adds nothing."""
    (agreed,) = distribution.add([0.0 if number is None else float(number + 2)])
    return round(agreed) - 2
