"""How well a network knows a text: per real token, per byte, and as the papers counted.

A document's own separator is a real token, since somebody has to know where it ends; padding is
none. The papers' protocol: one document is one row, cut off at the context and one token more,
filled up with the separator, and everything that was filled up counts in the mean. Then
``loss = f real_loss + (1 - f) pad_loss`` with the share f of real tokens.

Source: the public code of paper 1 (300M and 1.2B on SlimPajama).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkvary.inference.evaluation.scoring import Progress, keep_quiet, score_rows, score_windows
from qkvary.inference.evaluation.texts import Text
from qkvary.inference.evaluation.windows import cut
from qkvary.nn.decoder import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How a text is read."""

    context: int
    """Tokens that are read at most before a target."""
    stride: int
    """Tokens by which a window is ahead of the one before; the context for windows side by side."""
    joined: bool = False
    """Whether documents are read one behind the other; each by itself otherwise."""
    batch_size: int = 8
    """Windows that are read together; changes rounding only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScore:
    """What a network makes of a text."""

    documents: int
    """How many."""
    windows: int
    """From how many stretches they were read."""
    tokens: int
    """Real tokens that were predicted."""
    text_bytes: int
    """UTF-8 bytes that these stand for."""
    loss: float
    """Nats per real token."""
    loss_error: float
    """Its standard error, over stretches of ``context`` tokens; NaN if there are fewer than two."""
    marks: int
    """Beginnings and ends of documents among them; they stand for no byte."""
    mark_loss: float
    """Nats per mark; NaN where there are none."""

    @property
    def perplexity(self) -> float:
        """Per real token."""
        return _exp(self.loss)

    @property
    def bits_per_byte(self) -> float:
        """Bits for each byte of the text; comparable whatever the tokens are."""
        return self.loss * self.tokens / (math.log(2) * self.text_bytes)

    @property
    def byte_perplexity(self) -> float:
        """Per byte: two to the bits."""
        return _exp(self.bits_per_byte * math.log(2))


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperScore:
    """What the papers would have printed."""

    rows: int
    """Documents, each a row."""
    real_share: float
    """Targets that are no padding, as a share: f."""
    loss: float
    """Nats per target, padding included."""
    real_loss: float
    """Of the targets that are no padding, which is what the text costs."""
    pad_loss: float
    """Of the padding; NaN where there is none."""

    @property
    def perplexity(self) -> float:
        """The number in their tables."""
        return _exp(self.loss)

    @property
    def real_perplexity(self) -> float:
        """Without the padding."""
        return _exp(self.real_loss)


def score_text(
    model: Decoder, text: Text, protocol: Protocol, *, tell: Progress = keep_quiet
) -> TextScore:
    """Score every token of a text once.

    Args:
        model: In evaluation mode.
        text: Documents as tokens.
        protocol: How they are read.
        tell: Hears how far it is.

    Raises:
        ValueError: if nothing is to be predicted, or the network cannot read such windows.
    """
    spans = text.spans(joined=protocol.joined)
    windows = cut(spans, context=protocol.context, stride=protocol.stride)
    losses = score_windows(model, text.tokens, windows, batch_size=protocol.batch_size, tell=tell)
    return summarise(text, losses, protocol, documents=text.documents, windows=len(windows))


def summarise(
    text: Text,
    losses: NDArray[np.float64],
    protocol: Protocol,
    *,
    documents: int,
    windows: int,
) -> TextScore:
    """Means of the losses of a text.

    Args:
        text: Documents as tokens.
        losses: Of every token, NaN where it was no target.
        protocol: How they were read.
        documents: Of how many documents.
        windows: From how many windows.

    Raises:
        ValueError: if no token was predicted.
    """
    scored = ~np.isnan(losses)
    count = int(scored.sum())
    if not count:
        raise ValueError("expected a text with a token to be predicted, got none")
    marks = scored & text.is_mark()
    return TextScore(
        documents=documents,
        windows=windows,
        tokens=count,
        text_bytes=text.count_bytes(scored),
        loss=float(losses[scored].sum() / count),
        loss_error=_estimate_error(losses, scored, _number_blocks(text, protocol)),
        marks=int(marks.sum()),
        mark_loss=float(losses[marks].mean()) if marks.any() else math.nan,
    )


def score_as_papers(
    model: Decoder,
    text: Text,
    *,
    context: int,
    batch_size: int = 8,
    tell: Progress = keep_quiet,
) -> PaperScore:
    """Score documents as the papers did; the tail of a long one is not read.

    Args:
        model: In evaluation mode.
        text: Documents as tokens.
        context: Tokens that a row reads.
        batch_size: Rows that are read together.
        tell: Hears how far it is.

    Raises:
        ValueError: if there is no separator to fill rows up with.
    """
    if text.separator is None:
        raise ValueError("expected a separator to fill rows up with, got a tokenizer without one")
    rows, real = pad_rows(text, context=context, separator=text.separator)
    losses = score_rows(model, rows, batch_size=batch_size, tell=tell)
    count = int(real.sum())
    return PaperScore(
        rows=len(rows),
        real_share=count / real.size,
        loss=float(losses.mean()),
        real_loss=float(losses[real].mean()) if count else math.nan,
        pad_loss=float(losses[~real].mean()) if count < real.size else math.nan,
    )


def pad_rows(
    text: Text, *, context: int, separator: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """One row for each document, and which of its targets are real.

    Args:
        text: Documents as tokens.
        context: Tokens that a row reads; it has one more.
        separator: What rows are filled up with.

    Returns:
        Tokens [documents, context + 1], and [documents, context].
    """
    starts, ends = text.starts[:-1], text.starts[1:]
    lengths = np.minimum(ends - starts, context + 1)
    places = np.arange(context + 1)
    inside = places < lengths[:, None]
    found = text.tokens[np.minimum(starts[:, None] + places, len(text.tokens) - 1)]
    return np.where(inside, found, separator), inside[:, 1:]


def _number_blocks(text: Text, protocol: Protocol) -> NDArray[np.int64]:
    """For every token the number of its stretch of ``context`` tokens of one document."""
    spans = text.spans(joined=protocol.joined)
    sizes = spans[:, 1] - spans[:, 0]
    counts = -(-sizes // protocol.context)
    within = np.arange(len(text.tokens)) - np.repeat(spans[:, 0], sizes)
    return np.repeat(np.cumsum(counts) - counts, sizes) + within // protocol.context


def _estimate_error(
    losses: NDArray[np.float64], chosen: NDArray[np.bool_], blocks: NDArray[np.int64]
) -> float:
    """The standard error of a mean over tokens whose blocks are drawn, not they themselves."""
    sums = np.bincount(blocks[chosen], weights=losses[chosen])
    counts = np.bincount(blocks[chosen])
    sums, counts = sums[counts > 0], counts[counts > 0]
    if len(counts) < 2:
        return math.nan
    deviations = sums - sums.sum() / counts.sum() * counts
    spread = float(np.square(deviations).sum()) * len(counts) / (len(counts) - 1)
    return math.sqrt(spread) / float(counts.sum())


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf
