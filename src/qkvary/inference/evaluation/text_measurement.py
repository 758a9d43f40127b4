"""The scores of a language model on one text: per token, as in the papers, and by length."""

from dataclasses import dataclass

from qkvary.checkpoints.models import LoadedModel
from qkvary.data.prepared import is_prepared
from qkvary.data.sources import read_documents
from qkvary.inference.evaluation.lengths import LengthScore, lengthen, score_lengths
from qkvary.inference.evaluation.perplexity import (
    PaperScore,
    Protocol,
    TextScore,
    score_as_papers,
    score_text,
)
from qkvary.inference.evaluation.reading import TextReading
from qkvary.inference.evaluation.texts import Text, make_text, open_split
from qkvary.storage.errors import UsageError
from qkvary.text.progress_line import ShowProgress, no_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMeasurement:
    """The scores of a language model on one text."""

    reading: TextReading
    protocol: Protocol
    made_for: int
    """The network's maximum number of tokens."""
    score: TextScore
    paper: PaperScore | None
    """The score by the papers' protocol; ``None`` if not requested, or without a separator."""
    lengths: tuple[LengthScore, ...]


def measure_text(
    loaded: LoadedModel,
    reading: TextReading,
    *,
    batch_size: int = 8,
    show_progress: ShowProgress = no_progress,
) -> TextMeasurement:
    """Score a language model on a text."""
    network = loaded.network
    requested = reading.context or network.config.max_tokens
    longest = lengthen(network, requested)
    lengthen(network, max(reading.lengths, default=1))
    text = _load_text(loaded, reading)
    # A context longer than the text would only add padding.
    spans = text.spans(joined=reading.joined)
    most = int((spans[:, 1] - spans[:, 0]).max(initial=0)) - 1
    context = min(requested, max(network.config.max_tokens, most))
    stride = reading.stride or requested
    protocol = Protocol(
        context=context,
        # A stride above the requested context is passed on, and refused.
        stride=stride if stride > requested else min(stride, context),
        joined=reading.joined,
        batch_size=batch_size,
    )
    with show_progress("scoring") as on_progress:
        score = score_text(longest, text, protocol, on_progress=on_progress)
    paper, lengths = None, ()
    if reading.paper and text.separator is not None:
        with show_progress("scoring as the papers did") as on_progress:
            paper = score_as_papers(
                longest, text, context=context, batch_size=batch_size, on_progress=on_progress
            )
    if reading.lengths:
        with show_progress("scoring at several lengths") as on_progress:
            lengths = score_lengths(
                network, text, reading.lengths, protocol, on_progress=on_progress
            )
    return TextMeasurement(
        reading=reading,
        protocol=protocol,
        made_for=network.config.max_tokens,
        score=score,
        paper=paper,
        lengths=lengths,
    )


def _load_text(loaded: LoadedModel, reading: TextReading) -> Text:
    first = reading.data[0]
    if is_prepared(first):
        if len(reading.data) > 1:
            raise UsageError(f"expected one prepared set, got {first} and others")
        tokenizer, text = open_split(first, reading.split, most=reading.tokens)
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
    documents = read_documents(reading.data)
    text = make_text(loaded.tokenizer, (document.text for document in documents))
    return text if reading.tokens is None else text.cut(reading.tokens)
