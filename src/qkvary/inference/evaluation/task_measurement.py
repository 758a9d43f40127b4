"""The scores of a language model on tasks of lm-eval."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import cast

from qkvary.checkpoints.models import LoadedModel
from qkvary.data.tokenizers import Tokenizer
from qkvary.inference.evaluation.answers import FIVE, MeanScore, TaskScore, average
from qkvary.inference.evaluation.contamination import TrainingText, open_training_text
from qkvary.inference.evaluation.reading import TaskReading
from qkvary.inference.evaluation.text_measurement import ShowProgress, no_progress
from qkvary.storage.errors import UsageError
from qkvary.storage.packages import require


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMeasurement:
    """The scores of a language model on tasks."""

    reading: TaskReading
    """The tasks and how they were asked."""
    scores: Mapping[str, TaskScore]
    """The score on each task by its name."""
    mean: MeanScore | None
    """The mean of the five tasks; ``None`` unless all five were asked."""
    against: TrainingText | None
    """The text in which the questions were looked for."""
    lm_eval: str
    """The version of lm-eval."""


def prepare_tasks(reading: TaskReading) -> TrainingText | None:
    """Check that the tasks can be asked, before a network is loaded.

    Returns:
        The text in which the questions are looked for, if one is requested.

    Raises:
        UsageError: if lm-eval is not installed, or there is no such text.
        DamagedError: if the text is damaged.
    """
    require("lm_eval")
    # Read when the libraries are imported: no look-ups online, progress bars only in terminals.
    os.environ["HF_HUB_OFFLINE"] = "1"
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    return None if reading.against is None else open_training_text(reading.against)


def measure_tasks(
    loaded: LoadedModel,
    reading: TaskReading,
    against: TrainingText | None = None,
    *,
    batch_size: int = 8,
    show_progress: ShowProgress = no_progress,
) -> TaskMeasurement:
    """Score a language model on tasks.

    Args:
        loaded: The network and its tokenizer.
        reading: The tasks and how they are asked.
        against: What ``prepare_tasks`` returned.
        batch_size: Requests per batch; changes rounding only.
        show_progress: Opens a display of the progress.

    Raises:
        UsageError: for an unknown task, a missing file, a tokenizer that cannot encode every text,
            or too few examples.
        DamagedError: if a file is damaged.
    """

    def find_shared(questions: Sequence[str]) -> Sequence[bool]:
        with show_progress("reading training text") as on_progress:
            return cast("TrainingText", against).find(questions, on_progress=on_progress)

    # Imports lm-eval, which takes seconds and need not be installed.
    evaluate = cast(
        "Callable[..., dict[str, TaskScore]]",
        import_module("qkvary.inference.evaluation.harness").evaluate_tasks,
    )
    scores = evaluate(
        loaded.network,
        cast("Tokenizer", loaded.tokenizer),
        tuple(dict.fromkeys(one for name in reading.tasks for one in _expand(name))),
        folder=_find_folder(reading),
        fewshot=reading.fewshot,
        limit=reading.limit,
        batch_size=batch_size,
        find_shared=None if against is None else find_shared,
    )
    return TaskMeasurement(
        reading=reading,
        scores=scores,
        mean=average(scores),
        against=against,
        lm_eval=version("lm_eval"),
    )


def _expand(name: str) -> Sequence[str]:
    return FIVE if name == "five" else (name,)


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
