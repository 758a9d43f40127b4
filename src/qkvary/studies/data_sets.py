"""Makes sure that what runs read is there before any of them begins. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from qkvary.data.places import ensure_prepared, find_prepared
from qkvary.storage.errors import UsageError
from qkvary.studies.study import Cell
from qkvary.tasks.config import LanguageTaskConfig


def prepare_sets(cells: Iterable[Cell], tell: Callable[[str], None]) -> None:
    """Prepare the corpora that runs name and that are not prepared yet, each once.

    Args:
        cells: The runs that are to be made.
        tell: Told what is being prepared.

    Raises:
        QkvaryError: as ``ensure_prepared``.
    """
    tasks = [cell.run.task for cell in cells]
    named = {task.data: None for task in tasks if isinstance(task, LanguageTaskConfig)}
    for reference in named:
        try:
            find_prepared(reference)
        except UsageError:
            tell(f"preparing {reference}")
            ensure_prepared(reference)
