"""The scores of a language model on tasks of lm-eval."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from qkvary.checkpoints.models import LoadedModel
from qkvary.data.tokenizers import Tokenizer
from qkvary.inference.evaluation.answers import FIVE, MeanScore, TaskScore, average
from qkvary.inference.evaluation.contamination import TrainingText, open_training_text
from qkvary.inference.evaluation.local_tasks import LOCAL_TASKS, check_questions
from qkvary.inference.evaluation.reading import TaskReading
from qkvary.inference.evaluation.text_measurement import ShowProgress, no_progress
from qkvary.storage.errors import UsageError
from qkvary.storage.packages import require

if TYPE_CHECKING:
    from qkvary.inference.evaluation.stock_tasks import StockScore


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTasks:
    """Tasks that exist, with everything that scoring them needs."""

    reading: TaskReading
    local: tuple[str, ...]
    """The tasks whose questions are local files."""
    folder: Path | None
    """The folder of these files; ``None`` if ``local`` is empty."""
    others: tuple[str, ...]
    """The tasks that lm-eval itself loads."""
    against: TrainingText | None
    """The training text that is searched for the questions of local tasks."""
    manager: Any
    """The index of lm-eval's own tasks; ``None`` if ``others`` is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMeasurement:
    """The scores of a language model on tasks."""

    asked: PreparedTasks
    """The tasks and their settings."""
    scores: Mapping[str, TaskScore]
    """The scores on local tasks, by the name of the task."""
    mean: MeanScore | None
    """The mean over the five tasks; ``None`` unless all five were measured."""
    others: "Mapping[str, StockScore]"
    """The scores on tasks and groups that lm-eval itself loads."""
    lm_eval: str
    """The version of lm-eval."""


def prepare_tasks(reading: TaskReading) -> PreparedTasks:
    """Check that the tasks and their files exist, before a network is loaded.

    Raises:
        UsageError: if lm-eval is not installed, or there is no such task, file or text.
        DamagedError: if the text is damaged.
    """
    require("lm_eval")
    expanded = (FIVE if name == "five" else (name,) for name in reading.tasks)
    names = dict.fromkeys(chain.from_iterable(expanded))
    others = tuple(name for name in names if name not in LOCAL_TASKS)
    if others and reading.against is not None:
        raise UsageError(
            f"expected tasks with local files to compare with a set, got {', '.join(others)}; "
            f"choices: {', '.join(LOCAL_TASKS)}"
        )
    against = None if reading.against is None else open_training_text(reading.against)
    local = tuple(name for name in names if name in LOCAL_TASKS)
    folder = _find_folder(reading) if local else None
    for name in local:
        check_questions(name, cast("Path", folder))
    return PreparedTasks(
        reading=reading,
        local=local,
        folder=folder,
        others=others,
        against=against,
        manager=_load("stock_tasks").find_stock_tasks(others) if others else None,
    )


def measure_tasks(
    loaded: LoadedModel,
    asked: PreparedTasks,
    *,
    batch_size: int = 8,
    show_progress: ShowProgress = no_progress,
) -> TaskMeasurement:
    """Score a language model on tasks.

    Args:
        loaded: The network and its tokenizer.
        asked: The tasks.
        batch_size: Requests per batch; changes rounding only.
        show_progress: Opens a display of the progress.

    Raises:
        UsageError: for a missing file, a tokenizer that cannot encode every text, too few examples,
            or a task that lm-eval refuses.
        DamagedError: if a file is damaged.
    """
    reading, against = asked.reading, asked.against

    def find_shared(questions: Sequence[str]) -> Sequence[bool]:
        with show_progress("reading training text") as on_progress:
            return cast("TrainingText", against).find(questions, on_progress=on_progress)

    network, tokenizer = loaded.network, cast("Tokenizer", loaded.tokenizer)
    options: dict[str, Any] = {
        "fewshot": reading.fewshot,
        "limit": reading.limit,
        "batch_size": batch_size,
    }
    scores: dict[str, TaskScore] = {}
    if asked.local:
        scores = _load("harness").evaluate_tasks(
            network,
            tokenizer,
            asked.local,
            folder=asked.folder,
            find_shared=None if against is None else find_shared,
            **options,
        )
    others: dict[str, StockScore] = {}
    if asked.others:
        others = _load("stock_tasks").evaluate_stock_tasks(
            network,
            tokenizer,
            asked.others,
            asked.manager,
            folder=reading.task_data,
            **options,
        )
    return TaskMeasurement(
        asked=asked,
        scores=scores,
        mean=average(scores),
        others=others,
        lm_eval=version("lm_eval"),
    )


def _load(name: str) -> Any:
    """Import a module that needs lm-eval, which need not be installed."""
    return import_module(f"qkvary.inference.evaluation.{name}")


def _find_folder(reading: TaskReading) -> Path:
    if reading.task_data is not None:
        return reading.task_data
    root = os.environ.get("QKVARY_DATA")
    if not root:
        raise UsageError(
            "expected a folder with the files of the tasks: give --task-data, or set QKVARY_DATA "
            "to a folder with lm_eval in it"
        )
    return Path(root) / "lm_eval"
