"""Evaluate a language model: perplexity of a text, long contexts, and tasks through lm-eval."""

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from qkvary.api.arguments import verb
from qkvary.api.options import (
    SILENT,
    Checkpoint,
    CheckpointTokenizer,
    NetworkOptions,
    Terminal,
    Texts,
    open_checkpoint,
)
from qkvary.api.results import Result
from qkvary.data.splits import DataSplit
from qkvary.storage.errors import UsageError
from qkvary.storage.packages import require
from qkvary.text.numbers import Count, CountFromZero, Counts, Reads, read_words

Tasks = Annotated[tuple[str, ...], Reads(read_words, typed=tuple[str, ...])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Options for cutting a text into windows and scoring them."""

    split: DataSplit = "validation"
    """Split of a prepared set to score. Without a test split, test means validation."""
    tokens: Count | None = None
    """Maximum number of tokens to read."""
    context: Count | None = None
    """Maximum number of tokens before a target; the network's maximum if not given."""
    stride: Count | None = None
    """Tokens from the start of a window to the start of the next; the context if not given. After
    the first window, each target has at least context - stride tokens before it."""
    joined: bool = False
    """Concatenate the documents instead of scoring each separately."""
    lengths: Counts = ()
    """Also measure perplexity by position in windows of these lengths, such as 512,1k,4k. They may
    exceed the network's maximum, unless it has learned positions."""
    paper: bool = False
    """Also score as in the papers: one document per row, padded with separators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Options for tasks: the files, the solved examples and the number of questions."""

    task_data: Path | None = None
    """Folder of the task files; $QKVARY_DATA/lm_eval if not given."""
    fewshot: CountFromZero | None = None
    """Number of solved examples before each question. If not given: 0 for lambada, 5 for the other
    tasks from local files, and the task's own number for tasks that lm-eval downloads."""
    limit: Count | None = None
    """Number of questions per task, counted from the first; all if not given."""
    against: str | None = None
    """Prepared set (its folder, or name/tokenizer) to check for overlap. Questions that share 13
    consecutive words with its training split are counted. The score of the other questions is shown
    too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching(NetworkOptions):
    """Options for the device and the batching of the network."""

    batch_size: Count = 8
    """Number of windows or requests per batch. It changes results only by rounding."""


READING, ASKING, BATCHING = Reading(), Asking(), Batching()


def _silence_lm_eval(*, offline: bool) -> None:
    """Set variables that lm-eval and its libraries read when they are first imported."""
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"


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
    terminal: Terminal = SILENT,
) -> Result[Any]:
    """Evaluate a language model: perplexity of a text, long contexts, and tasks through lm-eval.

    Perplexity is per token of the text, without padding, and per byte; ``paper`` adds the
    perplexity of the papers, which counts padding. Accuracies come with their standard errors.

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
        terminal: Shows the progress.

    Returns:
        A result whose ``value`` is a ``TextMeasurement``, a ``TaskMeasurement``, or both.

    Raises:
        ValueError: if there is no such checkpoint, text or task, or the windows are too long for
            the network.
        DamagedError: if the checkpoint, the set or a file of a task is damaged.
    """
    if not data and not tasks:
        raise UsageError("expected a text (--data) or --tasks, got neither")
    if not tasks and asking != ASKING:
        raise UsageError("expected --tasks with options such as --fewshot, got only a text")

    from qkvary.data.prepared import is_prepared
    from qkvary.inference.evaluation.identity import identify
    from qkvary.inference.evaluation.local_tasks import LOCAL_TASKS, expand_tasks
    from qkvary.inference.evaluation.text_measurement import load_text, measure_text
    from qkvary.reports.evaluation import evaluation_report, task_data, text_data

    names, asked = expand_tasks(tasks or ()), None
    if names:
        require("lm_eval")
        if terminal.command is not None:
            _silence_lm_eval(offline=LOCAL_TASKS.keys() >= set(names))
        from qkvary.inference.evaluation.task_measurement import prepare_tasks

        asked = prepare_tasks(names, **asdict(asking))
    # Whether a network that is passed in has a tokenizer is checked when the text is opened.
    reads = bool(data) and isinstance(model, str | os.PathLike) and not is_prepared(data[0])
    loaded, name = open_checkpoint(model, tokenizer, batching, speaks=reads or bool(asked))
    how: dict[str, Any] = {
        "batch_size": batching.batch_size,
        "show_progress": terminal.show_progress,
    }
    document: dict[str, Any] = {
        "checkpoint": name,
        "batch_size": batching.batch_size,
        "identity": identify(loaded.network, loaded.tokenizer),
    }
    found: list[Any] = []
    if data:
        given = asdict(reading)
        text = load_text(loaded, data, split=given.pop("split"), tokens=given.pop("tokens"))
        found.append(measure_text(loaded, text, **given, **how))
        document |= {"data": list(map(str, data)), **text_data(found[-1])}
    if asked is not None:
        from qkvary.inference.evaluation.task_measurement import measure_tasks

        found.append(measure_tasks(loaded, asked, **how))
        document |= task_data(found[-1])
    return Result(found[0] if len(found) == 1 else tuple(found), evaluation_report(document))
