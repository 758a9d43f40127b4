"""KL divergence between the next-token distributions of two networks, in nats per token."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from qkvary.nn.language_model import LanguageModel

ROWS = 4
CHUNK = 256
"""Maximum number of tokens whose logits are in memory at the same time."""


def divergence_sum(
    original: LanguageModel,
    network: LanguageModel,
    wanted: Float[Tensor, "rows tokens d_model"],
    found: Float[Tensor, "rows tokens d_model"],
) -> Float[Tensor, ""]:
    """Return the sum over tokens of KL(original || network), from the hidden states of both."""
    total = found.new_zeros(())
    pairs = zip(wanted.flatten(0, 1).split(CHUNK), found.flatten(0, 1).split(CHUNK), strict=True)
    for reference, states in pairs:
        with torch.no_grad():
            expected = F.log_softmax(original.head(reference).float(), dim=-1)
        logits = F.log_softmax(network.head(states).float(), dim=-1)
        total = total + F.kl_div(logits, expected, reduction="sum", log_target=True)
    return total


class Comparison:
    """Scores networks on a text and compares them with the original.

    The hidden states of the original are computed only once.
    """

    def __init__(self, original: LanguageModel, tokens: Int[Tensor, "windows tokens"]) -> None:
        self.original = original
        self.tokens = tokens.to(original.embedding.device)
        self._wanted = self._read(original)

    @torch.no_grad()
    def measure(self, network: LanguageModel) -> tuple[float, float]:
        """Return the loss of a network and its divergence from the original, in nats per token."""
        is_other = network is not self.original
        states = self._read(network) if is_other else self._wanted
        loss = divergence = 0.0
        for rows, wanted, found in zip(self.tokens.split(ROWS), self._wanted, states, strict=True):
            loss += float(network.loss_sum(found[:, :-1], rows[:, 1:]))
            if is_other:
                divergence += float(divergence_sum(self.original, network, wanted, found))
        return loss / self.tokens[:, 1:].numel(), divergence / self.tokens.numel()

    @torch.no_grad()
    def _read(self, network: LanguageModel) -> list[Float[Tensor, "rows tokens d_model"]]:
        return [network.features(rows) for rows in self.tokens.split(ROWS)]
