"""The loss of every token of a text."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkvary.costs.memory import forward_bytes
from qkvary.inference.evaluation.windows import Windows, batch
from qkvary.nn.decoder import Decoder, device_of
from qkvary.storage.environment import require_memory
from qkvary.text.names import count

Progress = Callable[[int, int], None]
"""Called with the number of scored windows and their total."""


def ignore_progress(_done: int, _total: int) -> None:
    """Ignore progress."""


@torch.inference_mode()
def score_windows(
    model: Decoder,
    tokens: NDArray[np.int64],
    windows: Windows,
    *,
    batch_size: int,
    on_progress: Progress = ignore_progress,
) -> NDArray[np.float64]:
    """Return the loss of every token in nats, NaN for tokens that are not targets.

    Batching affects rounding only: windows of similar lengths are batched, and shorter ones are
    padded at the end, which a causal network does not see.
    """
    longest = int(windows.lengths.max(initial=0))
    check(model, tokens, longest=longest)
    _require_memory(model, rows=min(batch_size, len(windows)), length=longest)
    losses = np.full(len(tokens), np.nan)
    done = 0
    for numbers in batch(windows, size=batch_size):
        starts, lengths, known = (
            values[numbers] for values in (windows.starts, windows.lengths, windows.known)
        )
        offsets = np.arange(lengths[0])
        targets = starts[:, None] + offsets + 1
        wanted = (offsets >= known[:, None]) & (offsets < lengths[:, None])
        places = np.minimum(targets, len(tokens) - 1)
        rows = _put(tokens[places - 1], model), _put(tokens[places], model)
        losses[targets[wanted]] = _score(model, *rows, torch.from_numpy(wanted))
        done += len(numbers)
        on_progress(done, len(windows))
    return losses


@torch.inference_mode()
def score_rows(
    model: Decoder,
    rows: NDArray[np.int64],
    *,
    batch_size: int,
    on_progress: Progress = ignore_progress,
) -> NDArray[np.float64]:
    """Return the loss of every target of equally long rows, in nats: [rows, length - 1]."""
    check(model, rows.reshape(-1), longest=rows.shape[1] - 1)
    _require_memory(model, rows=min(batch_size, len(rows)), length=rows.shape[1] - 1)
    losses = np.empty((len(rows), rows.shape[1] - 1))
    for first in range(0, len(rows), batch_size):
        part = _put(rows[first : first + batch_size], model)
        wanted = torch.ones(part[:, 1:].shape, dtype=torch.bool)
        found = _score(model, part[:, :-1], part[:, 1:], wanted)
        losses[first : first + batch_size] = found.reshape(len(part), -1)
        on_progress(min(first + batch_size, len(rows)), len(rows))
    return losses


def check(model: Decoder, tokens: NDArray[np.int64], *, longest: int) -> None:
    """Check that a network can score the tokens."""
    if model.training:
        raise ValueError("expected a model in evaluation mode, got one that is training")
    if longest > model.config.max_tokens:
        raise ValueError(
            f"expected windows of at most {model.config.max_tokens} tokens, got {longest}"
        )
    highest = int(tokens.max(initial=0))
    if highest >= model.config.vocabulary:
        raise ValueError(
            f"expected tokens below {model.config.vocabulary}, the vocabulary of the network, got "
            f"{highest}: the text was encoded for another network"
        )


def _require_memory(model: Decoder, *, rows: int, length: int) -> None:
    if device_of(model).type != "cpu":
        return
    size = next(model.parameters()).element_size()
    require_memory(
        forward_bytes(model.config, tokens=rows * length, number_bytes=size),
        f"scoring {count(rows, 'window')} of {length:,} tokens at a time takes",
        "use a smaller --batch-size or --context",
    )


def _put(values: NDArray[np.int64], model: Decoder) -> Tensor:
    return torch.from_numpy(values).to(device_of(model))


def _score(model: Decoder, inputs: Tensor, targets: Tensor, wanted: Tensor) -> NDArray[np.float64]:
    # Positions are found on the host, so that the device need not be waited for.
    chosen = tuple(place.to(inputs.device) for place in wanted.nonzero(as_tuple=True))
    losses = model.token_losses(model.features(inputs)[chosen], targets[chosen])
    return losses.double().cpu().numpy()
