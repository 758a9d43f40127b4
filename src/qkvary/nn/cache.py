"""What decoding keeps: for each layer the distinct sources that key and value read, and no more.

The cache belongs to the caller. It stores sources before any rotation, so that what is stored does
not depend on positions and one tensor serves both roles. Of a layer with a window it stores the
tokens that a later one can still see.
"""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.sharing import Source

Sources = Mapping[Source, Float[Tensor, "batch heads tokens head_dim"]]


class LayerCache:
    """The stored sources of one layer: K alone where the value reads K.

    A layer with a window of w tokens keeps the last w - 1. Windows go by the order of the tokens,
    padding included, and not by the positions that a call may give them, so that what is dropped
    is the same in every row and never needed again.
    """

    def __init__(self, config: AttentionConfig, max_tokens: int | None = None) -> None:
        """Start empty.

        Args:
            config: The layer.
            max_tokens: Refuse to see more than this many tokens, kept or not.
        """
        window = config.variant.window
        self.sources = config.variant.cached
        self.max_tokens = max_tokens
        self._most_kept = None if window is None else window - 1
        self._length = 0
        self._stored: dict[Source, Tensor] = {}

    @property
    def length(self) -> int:
        """Tokens seen, which masks and positions have to cover."""
        return self._length

    @property
    def kept(self) -> int:
        """Tokens stored: the last of those seen."""
        return next(iter(self._stored.values())).shape[2] if self._stored else 0

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self._stored.values())

    def append(self, new: Sources) -> dict[Source, Tensor]:
        """Store the tokens just seen and return them behind everything stored before.

        Keeps only what key and value read, K alone for ``Q-K=V``, and only what a later token can
        see: the first of many new tokens may be returned without being kept.

        Args:
            new: The sources of the new tokens; those that are not kept are ignored.

        Raises:
            ValueError: if the tokens do not fit ``max_tokens`` or are of another batch size.
        """
        for source in self.sources:
            old, tensor = self._stored.get(source), new[source]
            if old is not None and old.shape[0] != tensor.shape[0]:
                raise ValueError(
                    f"expected a batch of {old.shape[0]} as stored, got {tensor.shape[0]}"
                )
            total = self._length + tensor.shape[2]
            if self.max_tokens is not None and total > self.max_tokens:
                raise ValueError(f"expected at most {self.max_tokens} tokens, got {total}")
        joined: dict[Source, Tensor] = {}
        for source in self.sources:
            old, tensor = self._stored.get(source), new[source]
            parts = (tensor,) if old is None else (old, tensor)
            # cat copies: what is kept must not hold on to the projections' whole output.
            joined[source] = torch.cat(parts, dim=2).contiguous()
        self._length += new[self.sources[0]].shape[2]
        self._stored = {source: self._keep(tensor) for source, tensor in joined.items()}
        return joined

    def _keep(self, tensor: Tensor) -> Tensor:
        dropped = 0 if self._most_kept is None else max(0, tensor.shape[2] - self._most_kept)
        # A view would hold on to the memory of what is dropped.
        last = tensor[:, :, dropped:]
        return last.clone(memory_format=torch.contiguous_format) if dropped else tensor


class KVCache:
    """One ``LayerCache`` per layer; called K and V even where it holds K only."""

    def __init__(self, layers: Sequence[AttentionConfig], *, max_tokens: int | None = None) -> None:
        """Start empty.

        Args:
            layers: The attention layers of the network: ``model.config.layers``.
            max_tokens: Refuse to see more than this many tokens, kept or not.
        """
        self.layers = [LayerCache(config, max_tokens) for config in layers]

    @property
    def length(self) -> int:
        """Tokens seen, as many by every layer."""
        return self.layers[0].length

    @property
    def nbytes(self) -> int:
        """Bytes held by all layers."""
        return sum(layer.nbytes for layer in self.layers)
