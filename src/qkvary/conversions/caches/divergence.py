"""The divergence of one network's next tokens from another's, in nats a token."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from qkvary.nn.language_model import LanguageModel

ROWS = 4
"""Windows per forward pass."""
CHUNK = 256
"""Maximum number of tokens whose logits are in memory at the same time."""


def divergence_sum(
    original: LanguageModel,
    network: LanguageModel,
    wanted: Float[Tensor, "rows tokens d_model"],
    found: Float[Tensor, "rows tokens d_model"],
) -> Float[Tensor, ""]:
    """Return the sum over tokens of KL(original || network), from hidden states.

    Args:
        original: The network whose distribution is the reference.
        network: The other network.
        wanted: The last hidden states of ``original``.
        found: The last hidden states of ``network``; they may need gradients.
    """
    total = found.new_zeros(())
    pairs = zip(wanted.flatten(0, 1).split(CHUNK), found.flatten(0, 1).split(CHUNK), strict=True)
    for reference, states in pairs:
        with torch.no_grad():
            expected = F.log_softmax(original.head(reference).float(), dim=-1)
        logits = F.log_softmax(network.head(states).float(), dim=-1)
        total = total + F.kl_div(logits, expected, reduction="sum", log_target=True)
    return total


@torch.no_grad()
def measure_divergence(
    original: LanguageModel, network: LanguageModel, tokens: Int[Tensor, "windows tokens"]
) -> float:
    """Return the mean of KL(original || network) over the tokens of windows."""
    total = 0.0
    for rows in tokens.to(network.embedding.device).split(ROWS):
        states = original.features(rows), network.features(rows)
        total += float(divergence_sum(original, network, *states))
    return total / tokens.numel()


def measure_loss(network: LanguageModel, tokens: Int[Tensor, "windows tokens"]) -> float:
    """Return the loss of a network in nats a token."""
    with torch.inference_mode():
        sums = [
            float(network(rows[:, :-1], targets=rows[:, 1:].contiguous()))
            for rows in tokens.to(network.embedding.device).split(ROWS)
        ]
    return sum(sums) / tokens[:, 1:].numel()
