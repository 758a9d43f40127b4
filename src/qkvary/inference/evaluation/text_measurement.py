"""The scores of a language model on one text: per token, as in the papers, and by length."""

from dataclasses import dataclass
from pathlib import Path

from qkvary.checkpoints.models import LoadedModel
from qkvary.data.prepared import is_prepared
from qkvary.data.sources import read_documents
from qkvary.data.splits import DataSplit
from qkvary.inference.evaluation.lengths import LengthScore, lengthen, score_lengths
from qkvary.inference.evaluation.perplexity import (
    PaperScore,
    Protocol,
    TextScore,
    score_as_papers,
    score_text,
)
from qkvary.inference.evaluation.texts import Text, make_text, open_split
from qkvary.storage.errors import UsageError
from qkvary.text.names import note_windows
from qkvary.text.progress_line import ShowProgress, no_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMeasurement:
    """The scores of a language model on one text."""

    protocol: Protocol
    made_for: int
    """The network's maximum number of tokens."""
    split: str | None
    """The split of a prepared set that was scored; ``None`` for other texts."""
    score: TextScore
    paper: PaperScore | None
    """The score by the papers' protocol; ``None`` if not requested, or if there is no separator."""
    lengths: tuple[LengthScore, ...]
    notes: tuple[str, ...] = ()
    """Notes on the length of the windows."""


def measure_text(
    loaded: LoadedModel,
    text: Text,
    *,
    context: int | None = None,
    stride: int | None = None,
    joined: bool = False,
    lengths: tuple[int, ...] = (),
    paper: bool = False,
    batch_size: int = 8,
    show_progress: ShowProgress = no_progress,
) -> TextMeasurement:
    """Score a language model on a text.

    Args:
        loaded: The network and its tokenizer.
        text: The text.
        context: The maximum number of tokens before a target; ``None`` for the network's maximum.
        stride: Tokens between the starts of two windows; ``None`` for ``context``.
        joined: Whether documents are concatenated; otherwise each is read separately.
        lengths: Window lengths at which the perplexity by position is compared.
        paper: Whether to score by the papers' protocol too; this needs a separator.
        batch_size: Windows per batch; affects rounding only.
        show_progress: Opens a progress display.
    """
    network = loaded.network
    requested = context or network.config.max_tokens
    longest = lengthen(network, requested)
    lengthen(network, max(lengths, default=1))
    # A context longer than the text would only add padding.
    spans = text.spans(joined=joined)
    most = int((spans[:, 1] - spans[:, 0]).max(initial=0)) - 1
    context = min(requested, max(network.config.max_tokens, most))
    stride = stride or requested
    protocol = Protocol(
        context=context,
        # A stride above the requested context is passed on, and refused.
        stride=stride if stride > requested else min(stride, context),
        joined=joined,
        batch_size=batch_size,
    )
    with show_progress("scoring") as on_progress:
        score = score_text(longest, text, protocol, on_progress=on_progress)
    as_papers, by_length = None, ()
    if paper and text.separator is not None:
        with show_progress("scoring by the papers' protocol") as on_progress:
            as_papers = score_as_papers(
                longest, text, context=context, batch_size=batch_size, on_progress=on_progress
            )
    if lengths:
        with show_progress("scoring at several lengths") as on_progress:
            by_length = score_lengths(network, text, lengths, protocol, on_progress=on_progress)
    return TextMeasurement(
        protocol=protocol,
        made_for=network.config.max_tokens,
        split=text.split,
        score=score,
        paper=as_papers,
        lengths=by_length,
        notes=_note_context(requested, context, network.config.max_tokens, joined=joined),
    )


def _note_context(requested: int, context: int, made_for: int, *, joined: bool) -> tuple[str, ...]:
    longest = "the text is no longer" if joined else "no document is longer"
    notes = note_windows(requested, context, longest)
    beyond = f"windows of {context:,} tokens are longer than the {made_for:,} that the network was "
    return (*notes, f"{beyond}made for") if context > made_for else notes


def load_text(
    loaded: LoadedModel, data: tuple[Path, ...], *, split: DataSplit, tokens: int | None
) -> Text:
    """Load the text of .txt and .jsonl files, of folders of such files, or of one prepared set.

    Of a prepared set, only ``split`` is read. If a set has no test split, the validation split is
    read in its place. Only the first ``tokens`` tokens are read; ``None`` means all tokens.
    """
    first = data[0]
    if is_prepared(first):
        if len(data) > 1:
            raise UsageError(f"expected one prepared set, got {first} and other paths")
        tokenizer, text = open_split(first, split, most=tokens)
        own = loaded.tokenizer
        if own is not None and own.describe() != tokenizer.describe():
            raise UsageError(
                "expected a prepared data set that was encoded with the checkpoint's tokenizer, "
                f"got {first}, which was encoded with another tokenizer"
            )
        return text
    if loaded.tokenizer is None:
        raise UsageError(
            "expected a checkpoint with a tokenizer, or a prepared set as the text, got neither"
        )
    documents = (document.text for document in read_documents(data))
    return make_text(loaded.tokenizer, documents, most=tokens)
