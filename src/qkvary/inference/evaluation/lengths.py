"""How far a network carries: perplexity by position, at lengths it was trained for and beyond.

Every length scores the same tokens of the same documents, cut into windows of that length.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from qkvary.inference.evaluation.perplexity import Protocol, TextScore, summarise
from qkvary.inference.evaluation.scoring import Progress, keep_quiet, score_windows
from qkvary.inference.evaluation.texts import Text
from qkvary.inference.evaluation.windows import Windows, cut, keep_whole
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError

FIRST_BUCKET = 128
"""Positions of a bucket, unless there would be too many of them."""
MOST_BUCKETS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Targets at neighbouring positions of their windows."""

    first: int
    """Place in the window, from 0, of the token that was read last before the first of them."""
    last: int
    """The same of the last of them."""
    tokens: int
    """How many, all windows together."""
    loss: float
    """Nats per target; NaN where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthScore:
    """What a network makes of windows of one length."""

    length: int
    """Tokens that a window reads."""
    beyond: bool
    """Whether the network was configured for fewer."""
    score: TextScore
    """Of all positions."""
    buckets: tuple[Bucket, ...]
    """By position."""


def lengthen(model: LanguageModel, max_tokens: int) -> LanguageModel:
    """The same network, with the same weights in the same memory, for more tokens.

    ``max_tokens`` is a limit and no part of the function, except where positions were learned.

    Args:
        model: The network.
        max_tokens: Tokens that it is to read.

    Raises:
        UsageError: if it has learned positions, and none for so many tokens.
    """
    config = model.config
    if max_tokens <= config.max_tokens:
        return model
    if config.positions == "learned":
        raise UsageError(
            f"expected at most {config.max_tokens} tokens, got {max_tokens}: this network learned "
            "a vector for each position, and has none for those behind"
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
    tell: Progress = keep_quiet,
) -> tuple[LengthScore, ...]:
    """Score the same tokens from windows of several lengths, side by side.

    Args:
        model: In evaluation mode.
        text: Documents as tokens; those that do not fill the longest window are left out.
        lengths: Tokens of the windows.
        protocol: Whether documents are joined, and how many tokens are read together.
        tell: Hears how far it is, for each length anew.

    Raises:
        UsageError: if no document is as long as the longest, or the network cannot read so much.
    """
    longest = max(lengths)
    spans = keep_whole(text.spans(joined=protocol.joined), length=longest)
    if not len(spans):
        advice = "" if protocol.joined else "; --joined reads documents one behind the other"
        raise UsageError(
            f"expected a document of more than {longest} tokens for the longest windows, got none"
            + advice
        )
    documents = text.documents if protocol.joined else len(spans)
    network = lengthen(model, longest)
    width = choose_width(longest)
    found: list[LengthScore] = []
    for length in lengths:
        windows = cut(spans, context=length, stride=length)
        # As many tokens at once whatever the length.
        size = max(1, protocol.batch_size * protocol.context // length)
        losses = score_windows(network, text.tokens, windows, batch_size=size, tell=tell)
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


def choose_width(longest: int) -> int:
    """Positions of a bucket: 128, or twice that as often as it takes for few of them."""
    width = FIRST_BUCKET
    while -(-longest // width) > MOST_BUCKETS:
        width *= 2
    return width


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
