"""Show a prepared set: counts, splits, overlaps, and the beginning of a text."""

from typing import Annotated

from cyclopts import Parameter

from qkvary.cli._options import Json
from qkvary.cli._output import show
from qkvary.cli._prepared_output import prepared_report
from qkvary.data.prepared import PreparedData, open_prepared
from qkvary.data.prepared_sets import find_prepared
from qkvary.reports.report import Prose

SAMPLE_TOKENS = 60

Reference = Annotated[
    str, Parameter(help="Folder, or name/tokenizer of a set in the cache: english-novels/gpt2.")
]
Document = Annotated[int, Parameter(help="Document of the training split to show.")]


def command(prepared: Reference, /, *, document: Document = 0, json_output: Json = False) -> None:
    """Show a prepared set: counts, splits, overlaps, and the beginning of a text.

    Every file is first compared with its sha256.
    """
    data = open_prepared(find_prepared(prepared))
    sample = begin_document(data, document)
    begins = Prose(f"document {document} of train begins:")
    report = prepared_report(data, begins, Prose(sample))
    show(report, json_output=json_output, sample=sample)


def begin_document(data: PreparedData, number: int) -> str:
    """Return the first tokens of a training document, as text.

    Raises:
        ValueError: if no such document exists.
    """
    split = data.splits["train"]
    if not 0 <= number < split.documents:
        raise ValueError(f"expected a document from 0 to {split.documents - 1}, got {number}")
    start, end = split.document_starts[number : number + 2].tolist()
    tokens = split.read(start, min(SAMPLE_TOKENS, end - start)).tolist()
    before = [None, *tokens][: len(tokens)]
    pieces = (
        data.tokenizer.piece(token, after=one) for token, one in zip(tokens, before, strict=True)
    )
    return b"".join(pieces).decode("utf-8", "replace")
