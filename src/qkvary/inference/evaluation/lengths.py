"""Length extrapolation: perplexity by position, at the trained lengths and beyond.

For every length, the same tokens of the same documents are scored, cut into windows of that length.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from qkvary.inference.evaluation.perplexity import Protocol, TextScore, summarise
from qkvary.inference.evaluation.scoring import score_windows
from qkvary.inference.evaluation.texts import Text
from qkvary.inference.evaluation.windows import Windows, cut, trim_to_windows
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError
from qkvary.text.progress_line import Progress, ignore

FIRST_BUCKET = 128
"""Positions per bucket. The number is doubled until ``MOST_BUCKETS`` buckets are enough."""
MOST_BUCKETS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The targets whose positions in their windows lie in one range."""

    first: int
    """Position in the window, counted from 0, of the token before the first target."""
    last: int
    """Position in the window of the token before the last target."""
    tokens: int
    """The number of targets over all windows."""
    loss: float
    """The mean loss per target, in nats; NaN without targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthScore:
    """The score of a network on windows of one length."""

    length: int
    """Tokens per window."""
    beyond: bool
    """Whether the length exceeds the network's configured maximum."""
    score: TextScore
    """The score over all positions."""
    buckets: tuple[Bucket, ...]
    """The scores by position."""


def lengthen(model: LanguageModel, max_tokens: int) -> LanguageModel:
    """Return a network with the same weights in the same memory, for up to ``max_tokens`` tokens.

    Raises:
        UsageError: if the network has too few learned positions.
    """
    config = model.config
    if max_tokens <= config.max_tokens:
        return model
    if config.positions == "learned":
        raise UsageError(
            f"expected at most {config.max_tokens} tokens, got {max_tokens}: the learned positions "
            "of this network do not cover more tokens"
        )
    with torch.device("meta"):
        longer = LanguageModel(dataclasses.replace(config, max_tokens=max_tokens))
    longer.load_state_dict(model.state_dict(keep_vars=True), assign=True)
    return longer.train(model.training)


def score_lengths(
    model: LanguageModel,
    text: Text,
    lengths: Sequence[int],
    protocol: Protocol,
    *,
    on_progress: Progress = ignore,
) -> tuple[LengthScore, ...]:
    """Return the scores of the same tokens in windows of several lengths.

    Documents shorter than the longest window are left out. ``on_progress`` restarts for each
    length.

    Raises:
        UsageError: if the longest window is longer than every document, or than the network allows.
    """
    longest = max(lengths)
    spans = trim_to_windows(text.spans(joined=protocol.joined), length=longest)
    if not len(spans):
        advice = "" if protocol.joined else "; --joined concatenates documents"
        raise UsageError(
            f"expected a document of more than {longest} tokens for the longest windows, got none"
            + advice
        )
    documents = text.documents if protocol.joined else len(spans)
    network = lengthen(model, longest)
    width = FIRST_BUCKET
    while -(-longest // width) > MOST_BUCKETS:
        width *= 2
    found: list[LengthScore] = []
    for length in lengths:
        windows = cut(spans, context=length, stride=length)
        # The same number of tokens per batch for every length.
        size = max(1, protocol.batch_size * protocol.context // length)
        losses = score_windows(
            network, text.tokens, windows, batch_size=size, on_progress=on_progress
        )
        read = dataclasses.replace(protocol, context=length, stride=length)
        found.append(
            LengthScore(
                length=length,
                beyond=length > model.config.max_tokens,
                score=summarise(text, losses, read, documents=documents, windows=len(windows)),
                buckets=_sort_into_buckets(losses, windows, width=width, length=length),
            )
        )
    return tuple(found)


def _sort_into_buckets(
    losses: NDArray[np.float64], windows: Windows, *, width: int, length: int
) -> tuple[Bucket, ...]:
    position = np.concatenate([np.arange(one) for one in windows.lengths.tolist()])
    at = np.repeat(windows.starts, windows.lengths) + position + 1
    number, count = position // width, -(-length // width)
    sums = np.bincount(number, weights=losses[at], minlength=count)
    tokens = np.bincount(number, minlength=count)
    return tuple(
        Bucket(
            first=width * index,
            last=min(width * (index + 1), length) - 1,
            tokens=int(tokens[index]),
            loss=float(sums[index] / tokens[index]) if tokens[index] else float("nan"),
        )
        for index in range(count)
    )
