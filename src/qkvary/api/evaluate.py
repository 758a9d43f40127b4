"""Evaluate a language model: perplexity of a text, long contexts, and tasks through lm-eval."""

import dataclasses
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, overload

from qkvary.api.arguments import options, verb
from qkvary.api.options import (
    Checkpoint,
    CheckpointTokenizer,
    NetworkOptions,
    Texts,
    open_checkpoint,
)
from qkvary.api.results import Result
from qkvary.data.splits import DataSplit
from qkvary.storage.errors import UsageError
from qkvary.storage.packages import require
from qkvary.text.numbers import Count, CountFromZero, Reads, read_count
from qkvary.text.progress_line import ShowProgress, no_progress

if TYPE_CHECKING:
    from qkvary.inference.evaluation.task_scores import TaskMeasurement
    from qkvary.inference.evaluation.text_measurement import TextMeasurement


def _split(given: object, _name: str) -> tuple[str, ...]:
    """Return names or counts; strings are split at commas."""
    several = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    return tuple(part.strip() for one in several for part in str(one).split(","))


def _read_lengths(given: object, name: str) -> tuple[int, ...]:
    """Return the given lengths as integers, without duplicates."""
    return tuple(dict.fromkeys(read_count(one, name) for one in _split(given, name)))


Tasks = Annotated[tuple[str, ...], Reads(_split, typed=tuple[str, ...])]


@options
class Reading:
    """Options for cutting a text into windows and scoring them."""

    split: DataSplit = "validation"
    """For a prepared set: the split to score."""
    tokens: Count | None = None
    """Maximum number of tokens to read."""
    context: Count | None = None
    """Maximum number of tokens before a target; the network's maximum if not given."""
    stride: Count | None = None
    """Tokens between the starts of two windows; the context if not given. After the first window,
    every target has at least context - stride tokens before it."""
    joined: bool = False
    """Concatenate the documents instead of scoring each separately."""
    lengths: Annotated[tuple[int, ...], Reads(_read_lengths, typed=tuple[str, ...])] = ()
    """Also measure perplexity by position in windows of these lengths, such as 512,1k,4k. They may
    exceed the network's maximum, unless it has learned positions."""
    paper: bool = False
    """Also score as the papers did: one document per row, padded with separators."""


@options
class Asking:
    """Options of the tasks: their files, solved examples and number of questions."""

    task_data: Path | None = None
    """Folder of the task files; $QKVARY_DATA/lm_eval if not given."""
    fewshot: CountFromZero | None = None
    """Solved examples before each question. If not given: 5, but 0 for lambada, and the task's own
    number for tasks that lm-eval downloads."""
    limit: Count | None = None
    """Number of questions per task, counted from the first; all if not given."""
    against: str | None = None
    """Prepared set (its folder, or name/tokenizer) to check for overlap: questions that share 13
    consecutive words with its training split are counted, and the others scored separately."""


@options
class Batching(NetworkOptions):
    """The device and batching of the network."""

    batch_size: Count = 8
    """Windows or requests per batch; affects only rounding."""


READING, ASKING, BATCHING = Reading(), Asking(), Batching()


@overload
def evaluate(
    model: Checkpoint, data: Texts, *, tasks: None = None, **options: Any
) -> "Result[TextMeasurement]": ...
@overload
def evaluate(
    model: Checkpoint, data: None = None, *, tasks: str | Sequence[str], **options: Any
) -> "Result[TaskMeasurement]": ...
@overload
def evaluate(
    model: Checkpoint, data: Texts, *, tasks: str | Sequence[str], **options: Any
) -> "Result[tuple[TextMeasurement, TaskMeasurement]]": ...
@verb
def evaluate(
    model: Checkpoint,
    data: Texts | None = None,
    *,
    tasks: Tasks | None = None,
    reading: Reading = READING,
    asking: Asking = ASKING,
    batching: Batching = BATCHING,
    tokenizer: CheckpointTokenizer = None,
    show_progress: ShowProgress = no_progress,
    own_process: bool = False,
) -> Result[Any]:
    """Evaluate a language model: perplexity of a text, long contexts, and tasks through lm-eval.

    Perplexity is per token of the text, without padding, and per byte; ``paper`` adds that of the
    papers, which counts padding. Accuracies come with their standard errors.

    Args:
        model: The checkpoint, or what ``qk.load`` returned.
        data: Text: files or folders of .txt and .jsonl, or a prepared set.
        tasks: Tasks, separated by commas. From local files: arc_easy, arc_challenge, hellaswag,
            piqa, winogrande (five stands for all of these) and lambada. All other names are
            looked up in lm-eval.
        reading: How the text is cut into windows, and how the windows are scored.
        asking: The files of the tasks, the solved examples, and the number of questions.
        batching: The device and batching.
        tokenizer: The tokenizer to use if the checkpoint has none.
        show_progress: Opens a progress display.
        own_process: True if nothing else runs in this process. lm-eval and its libraries may then
            be silenced, and are kept offline if all tasks are local.

    Raises:
        ValueError: if there is no such checkpoint, text or task, or the windows are too long for
            the network.
        DamagedError: if the checkpoint, the set or a file of a task is damaged.
    """
    if not data and not tasks:
        raise UsageError("expected a text (--data) or --tasks, got neither")
    if not tasks and asking != ASKING:
        raise UsageError("expected --tasks with the options of tasks, got only a text")
    batch_size = batching.batch_size

    from qkvary.data.prepared import is_prepared
    from qkvary.inference.evaluation.identity import identify
    from qkvary.inference.evaluation.local_tasks import LOCAL_TASKS, expand_tasks
    from qkvary.inference.evaluation.text_measurement import load_text, measure_text
    from qkvary.reports.evaluation import evaluation_report, task_data, text_data

    # lm-eval and its libraries read these variables when they are first imported, below.
    if own_process and not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    names, asked = expand_tasks(tasks or ()), None
    if names:
        if own_process and LOCAL_TASKS.keys() >= set(names):
            os.environ["HF_HUB_OFFLINE"] = "1"
        require("lm_eval")
        from qkvary.inference.evaluation.task_measurement import prepare_tasks

        asked = prepare_tasks(names, **dataclasses.asdict(asking))
    # Whether a network that is passed in has a tokenizer is checked when the text is opened.
    reads = bool(data) and isinstance(model, str | os.PathLike) and not is_prepared(data[0])
    loaded, name = open_checkpoint(model, tokenizer, batching, speaks=reads or bool(asked))
    document: dict[str, Any] = {
        "checkpoint": name,
        "batch_size": batch_size,
        "identity": identify(loaded.network, loaded.tokenizer),
    }
    found: list[Any] = []
    if data:
        given: dict[str, Any] = {**dataclasses.asdict(reading), "batch_size": batch_size}
        text = load_text(loaded, data, split=given.pop("split"), tokens=given.pop("tokens"))
        found.append(measure_text(loaded, text, **given, show_progress=show_progress))
        document |= {"data": list(map(str, data)), **text_data(found[-1])}
    if asked is not None:
        from qkvary.inference.evaluation.task_measurement import measure_tasks

        found += [measure_tasks(loaded, asked, batch_size=batch_size, show_progress=show_progress)]
        document |= task_data(found[-1])
    value = found[0] if len(found) == 1 else tuple(found)
    return Result(value, evaluation_report(document))
