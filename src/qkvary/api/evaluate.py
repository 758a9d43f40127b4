"""Evaluate a language model: perplexity of a text, long contexts, and tasks through lm-eval."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from qkvary.checkpoints.catalog import load_checkpoint, require_tokenizer
from qkvary.cli._options import (
    Checkpoint,
    CheckpointTokenizer,
    Json,
    NetworkOptions,
    counted,
    options,
)
from qkvary.cli._output import show, show_progress, to_json
from qkvary.data.split_names import DataSplit
from qkvary.inference.evaluation.reading import TaskReading, TextReading
from qkvary.storage.durable import check_file, make_directory, write_output
from qkvary.storage.errors import UsageError
from qkvary.text.units import parse_count

Out = Annotated[Path | None, Parameter(help="Write all figures into this file, as JSON.")]


@options
class Reading:
    """The text to score, and its windows."""

    data: Annotated[
        tuple[Path, ...],
        Parameter(
            consume_multiple=(1, None),
            help="Text: files or folders of .txt and .jsonl, or a prepared set.",
        ),
    ] = ()
    split: Annotated[DataSplit, Parameter(help="Split of a prepared set.")] = "validation"
    tokens: Annotated[int | None, counted("Maximum number of tokens to read.")] = None
    context: Annotated[
        int | None,
        counted("Maximum tokens before a target. The maximum of the network if not given."),
    ] = None
    stride: Annotated[
        int | None,
        counted(
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
    ] = False

    def resolve(self) -> TextReading:
        """Return the text and its windows."""
        lengths = () if self.lengths is None else map(parse_count, self.lengths.split(","))
        fields: dict[str, Any] = {
            **dataclasses.asdict(self),
            "lengths": tuple(dict.fromkeys(lengths)),
        }
        return TextReading(**fields)


@options
class Asking:
    """The tasks, and their prompts."""

    tasks: Annotated[
        str | None,
        Parameter(
            help="arc_easy, arc_challenge, hellaswag, piqa, winogrande (five: these) and lambada "
            "from local files; any other task of lm-eval from its files or the hub. Separated by "
            "commas."
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

    def resolve(self) -> TaskReading:
        """Return the tasks and how they are asked."""
        names = () if self.tasks is None else self.tasks.split(",")
        fields: dict[str, Any] = {
            **dataclasses.asdict(self),
            "tasks": tuple(name.strip() for name in names),
        }
        return TaskReading(**fields)


@options
class Running(NetworkOptions):
    """The device and batching of the network."""

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

    Perplexities are per real token and per byte of the text; with --paper also as the papers
    counted, with padding. Accuracies come with their standard error and their distance from
    guessing.
    """
    if not reading.data and asking.tasks is None:
        raise UsageError("expected --data or --tasks, got neither")
    if running.batch_size < 1:
        raise UsageError(f"expected --batch-size of at least 1, got {running.batch_size}")
    text = reading.resolve() if reading.data else None
    questions = None if asking == DEFAULT_ASKING else asking.resolve()
    if out is not None:
        check_file(out)

    from qkvary.data.prepared import is_prepared
    from qkvary.inference.evaluation.identity import identify
    from qkvary.inference.evaluation.task_measurement import measure_tasks, prepare_tasks
    from qkvary.inference.evaluation.text_measurement import measure_text
    from qkvary.reports.evaluation import evaluation_report, task_data, text_data

    # Read when lm-eval and its libraries are imported, which this process does for nothing else.
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    asked = None if questions is None else prepare_tasks(questions)
    if asked is not None and not asked.others:
        # Local files need no look-ups online.
        os.environ["HF_HUB_OFFLINE"] = "1"
    loaded = load_checkpoint(checkpoint)
    if asked or tokenizer is not None or not is_prepared(reading.data[0]):
        loaded, _ = require_tokenizer(loaded, checkpoint, tokenizer)
    loaded = loaded.to(running.device, running.dtype, running.weights)
    document: dict[str, Any] = {"checkpoint": checkpoint, "batch_size": running.batch_size}
    document["identity"] = identify(loaded.network, loaded.tokenizer)
    if text is not None:
        measured = measure_text(
            loaded, text, batch_size=running.batch_size, show_progress=show_progress
        )
        document |= text_data(measured)
    if asked is not None:
        answered = measure_tasks(
            loaded, asked, batch_size=running.batch_size, show_progress=show_progress
        )
        document |= task_data(answered)
    if out is not None:
        make_directory(out.absolute().parent)
        write_output(out, to_json(document).encode())
    show(evaluation_report(document), json_output=json_output)
