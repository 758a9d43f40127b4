"""Show a prepared set: counts, splits, overlaps, and the beginning of a text."""

from typing import TYPE_CHECKING

from qkvary.api.arguments import verb
from qkvary.api.results import Result, add_data
from qkvary.data.prepared_sets import find_prepared
from qkvary.reports.report import Prose

if TYPE_CHECKING:
    from qkvary.data.prepared import PreparedData

SAMPLE_TOKENS = 60


@verb
def show_data(prepared: str, *, document: int = 0) -> "Result[PreparedData]":
    """Show a prepared set: counts, splits, overlaps, and the beginning of a text.

    The sha256 of every file is verified first.

    Args:
        prepared: Folder of the set, or NAME/TOKENIZER of a set in the cache directory, such as
            english-novels/gpt2.
        document: Number of the document of the training split to show, counted from 0.

    Raises:
        ValueError: if there is no such set or document.
        DamagedError: if a file of the set was changed.
    """
    from qkvary.data.prepared import open_prepared
    from qkvary.reports.prepared_set import prepared_report

    data = open_prepared(find_prepared(prepared))
    split = data.splits["train"]
    if not 0 <= document < split.documents:
        raise ValueError(f"expected a document from 0 to {split.documents - 1}, got {document}")
    start, end = split.document_starts[document : document + 2].tolist()
    tokens = split.read(start, min(SAMPLE_TOKENS, end - start)).tolist()
    pieces = (
        data.tokenizer.piece(token, after=before)
        for token, before in zip(tokens, [None, *tokens], strict=False)
    )
    sample = b"".join(pieces).decode("utf-8", "replace")
    begins = Prose(f"document {document} of train begins:")
    report = prepared_report(data, begins, Prose(sample))
    return Result(data, add_data(report, sample=sample))
