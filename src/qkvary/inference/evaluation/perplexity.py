"""Perplexity of a text: per real token, per byte, and by the papers' protocol.

All tokens except padding are real tokens. A document's separator is a real token, because the end
of a document must be predicted.

In the papers' protocol, each document is one row. The row is truncated to the context plus one
token and padded with the separator. The mean loss includes the padding: ``loss = f real_loss +
(1 - f) pad_loss``, where f is the share of real tokens.

Source: the public code of paper 1 (300M and 1.2B on SlimPajama).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkvary.inference.evaluation.scoring import score_windows
from qkvary.inference.evaluation.texts import Text
from qkvary.inference.evaluation.windows import Windows, cut
from qkvary.nn.decoder import Decoder
from qkvary.storage.environment import require_memory
from qkvary.text import numbers
from qkvary.text.progress_line import Progress, ignore

PADDED_BYTES = 16
"""Bytes per token of padded rows. Each token is stored as an id and a position in the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """The way a text is cut into windows and batched."""

    context: int
    """The maximum number of tokens before a target."""
    stride: int
    """The offset between the starts of consecutive windows, at most ``context``."""
    joined: bool = False
    """Whether documents are concatenated; otherwise each is read separately."""
    batch_size: int = 8
    """Windows per batch; affects rounding only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScore:
    """The score of a network on a text."""

    documents: int
    windows: int
    tokens: int
    """The number of predicted real tokens."""
    text_bytes: int
    """The number of UTF-8 bytes of the predicted real tokens."""
    loss: float
    """The mean loss per real token, in nats."""
    loss_error: float
    """The standard error of ``loss`` over blocks of ``context`` tokens; NaN for a single block."""
    marks: int
    """The number of predicted tokens that begin or end a document. They have no bytes."""
    mark_loss: float
    """The mean loss of the tokens counted by ``marks``, in nats; NaN if there are none."""

    @property
    def perplexity(self) -> float:
        """The perplexity per real token."""
        return numbers.perplexity(self.loss)

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of the text, comparable between tokenizers."""
        return self.loss * self.tokens / (math.log(2) * self.text_bytes)

    @property
    def byte_perplexity(self) -> float:
        """The perplexity per byte."""
        return numbers.perplexity(self.bits_per_byte * math.log(2))


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperScore:
    """The score of a network by the papers' protocol."""

    rows: int
    """The number of rows, each with one document."""
    real_share: float
    """The share of targets that are not padding."""
    loss: float
    """The mean loss per target including padding, in nats."""
    real_loss: float
    """The mean loss per target without padding, in nats."""
    pad_loss: float
    """The mean loss per target that is padding, in nats; NaN without padding."""

    @property
    def perplexity(self) -> float:
        """The perplexity including padding, as in the papers' tables."""
        return numbers.perplexity(self.loss)

    @property
    def real_perplexity(self) -> float:
        """The perplexity without padding."""
        return numbers.perplexity(self.real_loss)


def score_text(
    model: Decoder, text: Text, protocol: Protocol, *, on_progress: Progress = ignore
) -> TextScore:
    """Score every token of a text once, with a network in evaluation mode.

    Raises:
        ValueError: if there is no token to predict, or the network does not support the windows.
    """
    spans = text.spans(joined=protocol.joined)
    windows = cut(spans, context=protocol.context, stride=protocol.stride)
    losses = score_windows(
        model, text.tokens, windows, batch_size=protocol.batch_size, on_progress=on_progress
    )
    return summarise(text, losses, protocol, documents=text.documents, windows=len(windows))


def summarise(
    text: Text,
    losses: NDArray[np.float64],
    protocol: Protocol,
    *,
    documents: int,
    windows: int,
) -> TextScore:
    """Return the score of a text, given the losses of its tokens.

    The loss of a token that was not predicted is NaN.
    """
    scored = ~np.isnan(losses)
    count = int(scored.sum())
    if not count:
        raise ValueError("expected a text with at least one token to predict, got no such token")
    marks = scored & text.marks[text.tokens]
    spans = text.spans(joined=protocol.joined)
    sizes = spans[:, 1] - spans[:, 0]
    counts = -(-sizes // protocol.context)
    within = np.arange(len(text.tokens)) - np.repeat(spans[:, 0], sizes)
    blocks = np.repeat(np.cumsum(counts) - counts, sizes) + within // protocol.context
    return TextScore(
        documents=documents,
        windows=windows,
        tokens=count,
        text_bytes=text.count_bytes(scored),
        loss=float(losses[scored].sum() / count),
        loss_error=_estimate_error(losses, scored, blocks),
        marks=int(marks.sum()),
        mark_loss=float(losses[marks].mean()) if marks.any() else math.nan,
    )


def score_as_papers(
    model: Decoder,
    text: Text,
    *,
    context: int,
    batch_size: int = 8,
    on_progress: Progress = ignore,
) -> PaperScore:
    """Score documents by the papers' protocol, in rows of ``context`` input tokens.

    The tail of a longer document is left out.

    Raises:
        ValueError: if there is no separator for padding.
        ResourceError: if the rows do not fit in memory.
    """
    if text.separator is None:
        raise ValueError("expected a separator for padding, got a tokenizer without a separator")
    require_memory(
        text.documents * (context + 1) * PADDED_BYTES,
        f"padding {text.documents:,} documents to {context:,} tokens takes",
        "use a smaller --context, or leave out --paper",
    )
    starts, ends = text.starts[:-1], text.starts[1:]
    lengths = np.minimum(ends - starts, context + 1)
    places = np.arange(context + 1)
    inside = places < lengths[:, None]
    found = text.tokens[np.minimum(starts[:, None] + places, len(text.tokens) - 1)]
    rows, real = np.where(inside, found, text.separator), inside[:, 1:]
    windows = Windows(
        starts=np.arange(len(rows)) * (context + 1),
        lengths=np.full(len(rows), context),
        known=np.zeros(len(rows), dtype=np.int64),
    )
    tokens = rows.reshape(-1)
    scored = score_windows(model, tokens, windows, batch_size=batch_size, on_progress=on_progress)
    losses = scored.reshape(rows.shape)[:, 1:]
    count = int(real.sum())
    return PaperScore(
        rows=len(rows),
        real_share=count / real.size,
        loss=float(losses.mean()),
        real_loss=float(losses[real].mean()) if count else math.nan,
        pad_loss=float(losses[~real].mean()) if count < real.size else math.nan,
    )


def _estimate_error(
    losses: NDArray[np.float64], chosen: NDArray[np.bool_], blocks: NDArray[np.int64]
) -> float:
    """Return the standard error of the mean loss over tokens, with whole blocks as the samples."""
    sums = np.bincount(blocks[chosen], weights=losses[chosen])
    counts = np.bincount(blocks[chosen])
    sums, counts = sums[counts > 0], counts[counts > 0]
    if len(counts) < 2:
        return math.nan
    deviations = sums - sums.sum() / counts.sum() * counts
    spread = float(np.square(deviations).sum()) * len(counts) / (len(counts) - 1)
    return math.sqrt(spread) / float(counts.sum())
