"""Turn documents into tokens on disk, once; the same command resumes where it stopped."""

import dataclasses
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from qkvary.cli._options import Json, options, positive
from qkvary.cli._output import ProgressLine, console, show
from qkvary.cli._prepared_output import prepared_report
from qkvary.data.preparation import PreparationSettings, Progress
from qkvary.data.prepared_sets import DEFAULT_TOKENIZER, prepare_corpus
from qkvary.data.sources import SourceOptions
from qkvary.text.units import duration

Source = Annotated[
    str,
    Parameter(
        help="A file or folder of .txt, .jsonl (.gz) or .parquet, hf:owner/name, or a corpus: "
        "english-novels, tinystories, wikitext-2, tiny-shakespeare, slimpajama, openwebtext, "
        "fineweb."
    ),
]
Tokenizer = Annotated[
    str, Parameter(help="gpt2, bytes, characters, or the path of a tokenizer.json or its folder.")
]
Separator = Annotated[str, Parameter(help="The token after every document, for a tokenizer.json.")]
Out = Annotated[
    Path | None, Parameter(help="Folder of the set; by default data/NAME-TOKENIZER of the cache.")
]
Workers = Annotated[int | None, Parameter(help="Threads; by default one for each processor.")]


@options
class Documents:
    """The selection of documents, and of those for validation."""

    name: Annotated[
        str | None, Parameter(help="Name of the set; by default that of the source.")
    ] = None
    field: Annotated[str, Parameter(help="The field of a line or row that holds the text.")] = (
        "text"
    )
    validation: Annotated[
        Path | None, Parameter(help="A file or folder of documents for validation.")
    ] = None
    held_out: Annotated[
        float | None,
        Parameter(
            help="Share of documents for validation, without --validation; 0.05 of local ones."
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        positive("Stop after the training document that reaches this many tokens: 100000, 64M."),
    ] = None


ALL_DOCUMENTS = Documents()


def command(
    source: Source,
    /,
    *,
    tokenizer: Tokenizer = DEFAULT_TOKENIZER,
    separator: Separator = "",
    out: Out = None,
    documents: Documents = ALL_DOCUMENTS,
    workers: Workers = None,
    json_output: Json = False,
) -> None:
    """Turn documents into tokens on disk, once; the same command resumes where it stopped.

    A complete set is only checked and shown.
    """
    choices = SourceOptions(**dataclasses.asdict(documents))
    with show_preparation() as on_progress:
        data = prepare_corpus(
            source,
            tokenizer,
            choices=choices,
            out=out,
            separator=separator,
            settings=PreparationSettings(workers=workers, on_progress=on_progress),
        )
    show(prepared_report(data), json_output=json_output)


@contextmanager
def show_preparation() -> Generator[Callable[[Progress], None]]:
    """Show the progress of a preparation."""
    start = time.monotonic()
    line = ProgressLine(console(sys.stderr), start)
    try:
        yield lambda progress: line.show(
            lambda: describe_progress(progress, time.monotonic() - start)
        )
    finally:
        line.clear()


def describe_progress(progress: Progress, seconds: float) -> str:
    """Return share, counts, rate and remaining time in words."""
    rate = (progress.text_bytes - progress.resumed_bytes) / max(seconds, 1e-9)
    parts = [
        f"{progress.documents:,} documents",
        f"{progress.tokens:,} tokens",
        f"{rate / 1e6:.1f} MB/s",
    ]
    if progress.total_bytes:
        share = min(1.0, progress.text_bytes / progress.total_bytes)
        parts.insert(0, f"{share:.0%}")
        left = (progress.total_bytes - progress.text_bytes) / rate if rate else None
        if left is not None and left >= 0:
            parts.append(f"{duration(left, 2)} left")
    return ", ".join(parts)
