"""Turn documents into tokens on disk, once; the same command resumes where it stopped."""

import dataclasses
import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from qkvary.cli._options import Json, convert_positive
from qkvary.cli._output import console, print_json
from qkvary.cli._prepared_output import print_prepared, summarise_prepared
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


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
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
        Parameter(
            converter=convert_positive,
            help="Stop after the training document that reaches this many tokens: 100000, 64M.",
        ),
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
    line = ProgressLine(console(sys.stderr))
    try:
        data = prepare_corpus(
            source,
            tokenizer,
            choices=choices,
            out=out,
            separator=separator,
            settings=PreparationSettings(workers=workers, on_progress=line.show),
        )
    finally:
        line.end()
    if json_output:
        print_json(summarise_prepared(data))
        return
    print_prepared(console(), data)


class ProgressLine:
    """The progress of a preparation: one updated line, or a line every 30 seconds."""

    def __init__(self, screen: Console) -> None:
        self._screen = screen
        self._pause = 0.2 if screen.is_terminal else 30.0
        self._start = self._shown = time.monotonic()
        self._drawn = False

    def show(self, progress: Progress) -> None:
        """Print the progress, unless the last line is too recent."""
        now = time.monotonic()
        if now - self._shown < self._pause:
            return
        self._shown = now
        text = describe_progress(progress, now - self._start)
        if self._screen.is_terminal:
            self._drawn = True
            self._screen.print(Text(text.ljust(self._screen.width - 1)), end="\r", no_wrap=True)
        else:
            self._screen.print(Text(text))

    def end(self) -> None:
        """End the line."""
        if self._drawn:
            self._screen.print()


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
