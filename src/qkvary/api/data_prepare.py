"""Tokenize documents and store the tokens on disk."""

from pathlib import Path
from typing import TYPE_CHECKING

from qkvary.api.arguments import verb
from qkvary.api.options import SILENT, Terminal
from qkvary.api.results import Result
from qkvary.data.prepared_sets import DEFAULT_TOKENIZER, prepare_source
from qkvary.data.sources import SourceOptions

if TYPE_CHECKING:
    from qkvary.data.prepared import PreparedData


DOCUMENTS = SourceOptions()


@verb
def prepare_data(
    source: str,
    *,
    tokenizer: str = DEFAULT_TOKENIZER,
    separator: str = "",
    out: Path | None = None,
    documents: SourceOptions = DOCUMENTS,
    workers: int | None = None,
    terminal: Terminal = SILENT,
) -> "Result[PreparedData]":
    """Tokenize documents and store the tokens on disk.

    The same command resumes after a stop. A complete set is only checked and shown.

    Args:
        source: A file or folder of .txt, .jsonl (.gz) or .parquet, hf:owner/name, or a corpus:
            english-novels, tinystories, wikitext-2, tiny-shakespeare, slimpajama, openwebtext,
            fineweb.
        tokenizer: gpt2, bytes, characters, or the path of a tokenizer.json or its folder.
        separator: For a tokenizer.json: the token that ends a document.
        out: Folder of the set; data/NAME-TOKENIZER in the cache directory if not given.
        documents: Which documents to take.
        workers: Number of threads; one per usable core if not given.
        terminal: Shows the progress.

    Raises:
        ValueError: if the source or the tokenizer does not exist.
        BusyError: if another process prepares the same set.
    """
    from qkvary.reports.prepared_set import prepared_report

    with terminal.show_progress("preparing", "bytes") as show:
        data = prepare_source(
            source,
            tokenizer,
            options=documents,
            out=out,
            separator=separator,
            workers=workers,
            on_progress=show,
        )
    return Result(data, prepared_report(data))
