"""Prepares the data sets of runs before the first run starts. Torch-free."""

from collections.abc import Callable, Iterable

from qkvary.studies.study import Cell


def prepare_sets(cells: Iterable[Cell], report: Callable[[str], None]) -> None:
    """Check the data of every run, each once; download or prepare what is not there.

    Args:
        cells: The runs.
        report: Called with a message for what takes long.

    Raises:
        QkvaryError: if data is not there, damaged, or not the expected one.
    """
    tasks = [cell.run.task for cell in cells]
    for task in {
        (type(task), task.data_fingerprint, getattr(task, "data", "")): task for task in tasks
    }.values():
        task.check_data(report)
