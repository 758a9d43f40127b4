"""The interface that decoding needs: next-token logits, with a cache that the caller owns."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qkvary.arch.networks import TokenNetwork
from qkvary.nn.cache import KVCache
from qkvary.nn.shapes import AttentionMask


@runtime_checkable
class Decoder(Protocol):
    """The protocol of a network that gives next-token logits; a user's network can follow it.

    ``forward(tokens)`` equals ``head(features(tokens))``.
    """

    training: bool

    @property
    def config(self) -> TokenNetwork:
        """The network's sizes; ``config.layers`` are the layers that a cache stores."""
        ...

    def __call__(
        self,
        tokens: Int[Tensor, "batch tokens"],
        *,
        cache: KVCache | None = None,
        attention_mask: AttentionMask | None = None,
    ) -> Float[Tensor, "batch tokens vocabulary"]:
        """Return the logits of the next token at every position."""
        ...

    def features(
        self,
        tokens: Int[Tensor, "batch tokens"],
        *,
        cache: KVCache | None = None,
        attention_mask: AttentionMask | None = None,
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Return the hidden states after the last layer.

        Args:
            tokens: Ids of the tokens after those in the cache.
            cache: The cache, to which the new tokens are appended.
            attention_mask: True for real tokens; covers those that the cache has seen and new ones.
        """
        ...

    def head(self, features: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocabulary"]:
        """Compute logits from hidden states."""
        ...

    def token_losses(
        self, features: Float[Tensor, "tokens d_model"], targets: Int[Tensor, " tokens"]
    ) -> Float[Tensor, " tokens"]:
        """Return the cross entropy of each target given its hidden state, in nats."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the learned tensors, at least one."""
        ...


def device_of(model: Decoder) -> torch.device:
    """Return the device of a network's parameters."""
    return next(model.parameters()).device
