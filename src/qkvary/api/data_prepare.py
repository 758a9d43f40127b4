"""Turn documents into tokens on disk, once; the same command resumes where it stopped."""

from typing import TYPE_CHECKING

from qkvary.api.options import Count, ShowProgress, no_progress, options, takes_options
from qkvary.api.results import Result
from qkvary.data.prepared_sets import DEFAULT_TOKENIZER, prepare_corpus
from qkvary.data.sources import SourceOptions
from qkvary.storage.untrusted_files import StrPath, read_name, read_path
from qkvary.text.units import read_count

if TYPE_CHECKING:
    from qkvary.data.prepared import PreparedData


@options
class Documents:
    """The selection of documents, and of those for validation."""

    name: str | None = None
    """Name of the set; the name of the source if not given."""
    field: str = "text"
    """The JSON field or table column that holds the text."""
    validation: StrPath | None = None
    """A file or folder of documents for validation."""
    held_out: float | None = None
    """Share of the documents to hold out for validation, if --validation names none. 0.05 for local
    files if not given."""
    max_tokens: Count | None = None
    """Stop after the training document that reaches this many tokens: 100000, 64M."""

    def resolve(self) -> SourceOptions:
        """Return the options of the source."""
        return SourceOptions(
            name=self.name,
            field=self.field,
            validation=None if self.validation is None else read_path(self.validation),
            held_out=self.held_out,
            max_tokens=read_count(self.max_tokens, "max_tokens"),
        )


DOCUMENTS = Documents()


@takes_options
def prepare_data(
    source: StrPath,
    *,
    tokenizer: StrPath = DEFAULT_TOKENIZER,
    separator: str = "",
    out: StrPath | None = None,
    documents: Documents = DOCUMENTS,
    workers: int | None = None,
    show_progress: ShowProgress = no_progress,
) -> "Result[PreparedData]":
    """Turn documents into tokens on disk, once; the same command resumes where it stopped.

    A complete set is only checked and shown.

    Args:
        source: A file or folder of .txt, .jsonl (.gz) or .parquet, hf:owner/name, or a corpus:
            english-novels, tinystories, wikitext-2, tiny-shakespeare, slimpajama, openwebtext,
            fineweb.
        tokenizer: gpt2, bytes, characters, or the path of a tokenizer.json or its folder.
        separator: For a tokenizer.json: the token that ends a document.
        out: Folder of the set; data/NAME-TOKENIZER in the cache if not given.
        documents: The selection of documents.
        workers: Number of threads; one per processor if not given.
        show_progress: Opens a display of the progress.

    Raises:
        ValueError: if the source or the tokenizer does not exist.
        BusyError: if another process prepares the same set.
    """
    from qkvary.data.preparation import PreparationSettings
    from qkvary.reports.prepared_set import prepared_report

    with show_progress("preparing", "bytes") as show:
        settings = PreparationSettings(
            workers=workers, on_progress=lambda progress: progress.show(show)
        )
        data = prepare_corpus(
            read_name(source, "a corpus, file or folder"),
            read_name(tokenizer, "a tokenizer"),
            choices=documents.resolve(),
            out=None if out is None else read_path(out),
            separator=separator,
            settings=settings,
        )
    return Result(data, prepared_report(data))
