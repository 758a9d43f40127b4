"""The loss of every token of a text."""

import numpy as np
import torch
from numpy.typing import NDArray

from qkvary.costs.memory import forward_bytes
from qkvary.inference.evaluation.windows import Windows, batch
from qkvary.nn.decoder import Decoder, device_of
from qkvary.storage.environment import require_memory
from qkvary.text.names import count
from qkvary.text.progress_line import Progress, ignore


@torch.inference_mode()
def score_windows(
    model: Decoder,
    tokens: NDArray[np.int64],
    windows: Windows,
    *,
    batch_size: int,
    on_progress: Progress = ignore,
) -> NDArray[np.float64]:
    """Return the loss of every token in nats. Tokens that are not targets get NaN.

    Batching affects rounding only. Windows of similar lengths are batched, and the shorter windows
    are padded at the end. A causal network does not see this padding.
    """
    longest = int(windows.lengths.max(initial=0))
    _check(model, tokens, longest=longest)
    if device_of(model).type == "cpu":
        size = next(model.parameters()).element_size()
        rows = min(batch_size, len(windows))
        require_memory(
            forward_bytes(model.config, tokens=rows * longest, number_bytes=size),
            f"scoring {count(rows, 'window')} of {longest:,} tokens at a time takes",
            "use a smaller --batch-size or --context",
        )
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
        losses[targets[wanted]] = _score(model, tokens[places - 1], tokens[places], wanted)
        done += len(numbers)
        on_progress(done, len(windows))
    return losses


def _check(model: Decoder, tokens: NDArray[np.int64], *, longest: int) -> None:
    if model.training:
        raise ValueError("expected a model in evaluation mode, got a model in training mode")
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


def _score(
    model: Decoder,
    inputs: NDArray[np.int64],
    targets: NDArray[np.int64],
    wanted: NDArray[np.bool_],
) -> NDArray[np.float64]:
    device = device_of(model)
    # Positions are found on the host, so that it does not wait for the device.
    chosen = tuple(place.to(device) for place in torch.from_numpy(wanted).nonzero(as_tuple=True))
    features = model.features(torch.from_numpy(inputs).to(device))
    losses = model.token_losses(features[chosen], torch.from_numpy(targets).to(device)[chosen])
    return losses.double().cpu().numpy()
