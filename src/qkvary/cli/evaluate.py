"""Evaluate a language model: perplexity of a text, long contexts, and tasks through lm-eval."""

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Parameter

from qkvary.checkpoints.catalog import load_checkpoint, require_tokenizer
from qkvary.cli._options import (
    Checkpoint,
    CheckpointTokenizer,
    Device,
    Json,
    NetworkDtype,
    NetworkWeights,
    convert_count,
)
from qkvary.cli._output import show, show_progress, to_json
from qkvary.inference.evaluation.answers import FIVE
from qkvary.inference.evaluation.local_tasks import LOCAL_TASKS
from qkvary.inference.evaluation.reading import Split, TextReading
from qkvary.storage.durable import check_file, make_directory, write_output
from qkvary.storage.errors import UsageError
from qkvary.storage.packages import require
from qkvary.text.units import parse_count

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

    from qkvary.checkpoints.models import LoadedModel
    from qkvary.data.tokenizers import Tokenizer
    from qkvary.inference.evaluation.answers import Accuracy, TaskScore
    from qkvary.inference.evaluation.contamination import TrainingText
    from qkvary.inference.evaluation.stock_tasks import StockScore


def _count(text: str) -> Any:
    return Parameter(converter=convert_count, help=text)


Out = Annotated[Path | None, Parameter(help="Write all figures into this file, as JSON.")]


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The text to score, and its windows."""

    data: Annotated[
        tuple[Path, ...],
        Parameter(
            consume_multiple=(1, None),
            help="Text: files or folders of .txt and .jsonl, or a prepared set.",
        ),
    ] = ()
    split: Annotated[Split, Parameter(help="Split of a prepared set.")] = "validation"
    tokens: Annotated[int | None, _count("Maximum number of tokens to read.")] = None
    context: Annotated[
        int | None,
        _count("Maximum tokens before a target. The maximum of the network if not given."),
    ] = None
    stride: Annotated[
        int | None,
        _count(
            "Tokens between starts of windows, such as half of --context: every target has at "
            "least context - stride tokens before it. As many as --context if not given."
        ),
    ] = None
    joined: Annotated[
        bool, Parameter(help="Read documents one after the other, not separately.")
    ] = False
    lengths: Annotated[
        str | None,
        Parameter(
            help="Perplexity by position from windows of these lengths, such as 512,1k,4k; also "
            "beyond the maximum of the network, unless it learned its positions."
        ),
    ] = None
    paper: Annotated[
        bool,
        Parameter(
            negative="--no-paper",
            help="Also count as the papers did: a document per row, padded with separators.",
        ),
    ] = True

    def resolve(self) -> TextReading:
        """Return the text and its windows."""
        lengths = () if self.lengths is None else map(parse_count, self.lengths.split(","))
        fields: dict[str, Any] = {
            **dataclasses.asdict(self),
            "lengths": tuple(dict.fromkeys(lengths)),
        }
        return TextReading(**fields)


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The tasks, and their prompts."""

    tasks: Annotated[
        str | None,
        Parameter(
            help="arc_easy, arc_challenge, hellaswag, piqa, winogrande (five: these) and lambada "
            "from local files; any other task of lm-eval from the hub. Separated by commas."
        ),
    ] = None
    task_data: Annotated[
        Path | None,
        Parameter(help="Folder of the task files; lm_eval in $QKVARY_DATA if not given."),
    ] = None
    fewshot: Annotated[
        int | None,
        Parameter(
            help="Solved examples before each question; 5, lambada 0, tasks of the hub their own."
        ),
    ] = None
    limit: Annotated[
        int | None, Parameter(help="Number of questions per task, from the first.")
    ] = None
    against: Annotated[
        str | None,
        Parameter(
            help="A prepared set, its folder or name/tokenizer: count questions that share 13 "
            "words in a row with its training split, and score the others separately."
        ),
    ] = None


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The device and batching of the network."""

    device: Device = "cpu"
    dtype: NetworkDtype = None
    weights: NetworkWeights = None
    batch_size: Annotated[
        int, Parameter(help="Windows or requests per batch; changes rounding only.")
    ] = 8


DEFAULT_READING = Reading()
DEFAULT_ASKING = Asking()
DEFAULT_RUNNING = Running()


def command(
    checkpoint: Checkpoint,
    /,
    *,
    reading: Reading = DEFAULT_READING,
    asking: Asking = DEFAULT_ASKING,
    running: Running = DEFAULT_RUNNING,
    tokenizer: CheckpointTokenizer = None,
    out: Out = None,
    json_output: Json = False,
) -> None:
    """Evaluate a language model: perplexity of a text, long contexts, and tasks through lm-eval.

    Perplexities are per real token, per byte of the text, and as the papers counted, with padding.
    Accuracies come with their standard error and their distance from guessing.
    """
    if not reading.data and asking.tasks is None:
        raise UsageError("expected --data or --tasks, got neither")
    _check_numbers(asking, running)
    text = reading.resolve() if reading.data else None
    names = _choose_tasks(asking)
    if out is not None:
        check_file(out)

    from qkvary.data.prepared import is_prepared
    from qkvary.inference.evaluation.contamination import open_training_text
    from qkvary.inference.evaluation.identity import identify
    from qkvary.inference.evaluation.text_measurement import measure_text
    from qkvary.reports.evaluation import evaluation_report, text_data

    manager = _find_others(names)
    against = None if asking.against is None else open_training_text(asking.against)
    loaded = load_checkpoint(checkpoint)
    if names or tokenizer is not None or not is_prepared(reading.data[0]):
        loaded, _ = require_tokenizer(loaded, checkpoint, tokenizer)
    loaded = loaded.to(running.device, running.dtype, running.weights)
    document: dict[str, Any] = {"checkpoint": checkpoint, "batch_size": running.batch_size}
    document["identity"] = identify(loaded.network, loaded.tokenizer)
    if text is not None:
        measured = measure_text(
            loaded, text, batch_size=running.batch_size, show_progress=show_progress
        )
        document |= text_data(measured)
    local = [name for name in names if name in LOCAL_TASKS]
    if local:
        document |= _score_tasks(loaded, local, asking, running, against)
    if manager is not None:
        others = [name for name in names if name not in LOCAL_TASKS]
        document |= _score_others(loaded, others, manager, asking, running)
    if out is not None:
        make_directory(out.absolute().parent)
        write_output(out, to_json(document).encode())
    show(evaluation_report(document), json_output=json_output)


def _check_numbers(asking: Asking, running: Running) -> None:
    """Refuse invalid numbers before anything is loaded."""
    counts = {
        "--limit": asking.limit,
        "--batch-size": running.batch_size,
    }
    for name, count in counts.items():
        if count is not None and count < 1:
            raise UsageError(f"expected {name} of at least 1, got {count}")
    if asking.fewshot is not None and asking.fewshot < 0:
        raise UsageError(f"expected --fewshot of at least 0, got {asking.fewshot}")
    if asking.against is not None and asking.tasks is None:
        raise UsageError("expected --tasks with --against, got none")


def _choose_tasks(asking: Asking) -> tuple[str, ...]:
    if asking.tasks is None:
        return ()
    require("lm_eval")
    names = [part.strip() for part in asking.tasks.split(",")]
    chosen = tuple(
        dict.fromkeys(one for name in names for one in (FIVE if name == "five" else (name,)))
    )
    others = [name for name in chosen if name not in LOCAL_TASKS]
    if others and asking.against is not None:
        raise UsageError(
            f"expected tasks with local files with --against, got {', '.join(others)}; choices: "
            f"{', '.join(LOCAL_TASKS)}"
        )
    # Read when the libraries are imported: no needless look-ups online, and progress bars only in
    # terminals.
    if not others:
        os.environ["HF_HUB_OFFLINE"] = "1"
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    return chosen


def _score_tasks(
    loaded: "LoadedModel",
    names: Sequence[str],
    asking: Asking,
    running: Running,
    against: "TrainingText | None",
) -> dict[str, Any]:
    """Return the scores of all tasks."""
    from qkvary.inference.evaluation.answers import average
    from qkvary.inference.evaluation.harness import evaluate_tasks, lm_eval_version

    folder = _find_task_data(asking)
    scores = evaluate_tasks(
        loaded.network,
        cast("Tokenizer", loaded.tokenizer),
        names,
        folder=folder,
        fewshot=asking.fewshot,
        limit=asking.limit,
        batch_size=running.batch_size,
        find_shared=None if against is None else _with_progress(against),
    )
    mean = average(scores)
    return {
        "lm_eval": lm_eval_version(),
        "limit": asking.limit,
        "against": None if against is None else against.describe(),
        "tasks": {name: describe_task(score) for name, score in scores.items()},
        "mean_of_five": None
        if mean is None
        else {
            "accuracy": describe_share(mean.accuracy),
            "normalised": describe_share(mean.normalised),
        },
    }


def _find_others(names: Sequence[str]) -> "TaskManager | None":
    """Look up the tasks without local files; None if there are none."""
    others = [name for name in names if name not in LOCAL_TASKS]
    if not others:
        return None
    from qkvary.inference.evaluation.stock_tasks import find_stock_tasks

    return find_stock_tasks(others)


def _score_others(
    loaded: "LoadedModel",
    names: Sequence[str],
    manager: "TaskManager",
    asking: Asking,
    running: Running,
) -> dict[str, Any]:
    """Return the scores of tasks that lm-eval loads itself."""
    from qkvary.inference.evaluation.harness import lm_eval_version
    from qkvary.inference.evaluation.stock_tasks import evaluate_stock_tasks

    scores = evaluate_stock_tasks(
        loaded.network,
        cast("Tokenizer", loaded.tokenizer),
        names,
        manager,
        fewshot=asking.fewshot,
        limit=asking.limit,
        batch_size=running.batch_size,
    )
    return {
        "lm_eval": lm_eval_version(),
        "limit": asking.limit,
        "other_tasks": {name: _describe_other(score) for name, score in scores.items()},
    }


def _describe_other(score: "StockScore") -> dict[str, Any]:
    metrics = {
        name: {"value": value, "error": error} for name, (value, error) in score.metrics.items()
    }
    return {**dataclasses.asdict(score), "metrics": metrics}


def _find_task_data(asking: Asking) -> Path:
    if asking.task_data is not None:
        return asking.task_data
    root = os.environ.get("QKVARY_DATA")
    if not root:
        raise UsageError(
            "expected a folder with the files of the tasks: give --task-data, or set QKVARY_DATA "
            "to a folder with lm_eval in it"
        )
    return Path(root) / "lm_eval"


def describe_task(score: "TaskScore") -> dict[str, Any]:
    """Return all figures by name."""
    found = score.contamination
    return {
        **dataclasses.asdict(score),
        "accuracy": describe_share(score.accuracy),
        "normalised": describe_share(score.normalised),
        "contamination": None
        if found is None
        else {
            **dataclasses.asdict(found),
            "accuracy": describe_share(found.accuracy),
            "normalised": describe_share(found.normalised),
        },
    }


def describe_share(share: "Accuracy | None") -> dict[str, Any] | None:
    """Return an accuracy with its distance from guessing."""
    return None if share is None else {**dataclasses.asdict(share), "distance": share.distance}


def _with_progress(against: "TrainingText") -> Callable[[Sequence[str]], Sequence[bool]]:
    """Return a search for questions in a text that shows its progress."""

    def find(questions: Sequence[str]) -> Sequence[bool]:
        with show_progress("reading training text", "tokens") as on_progress:
            return against.find(questions, on_progress=on_progress)

    return find
