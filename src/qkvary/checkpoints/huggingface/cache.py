"""Adapts our cache to transformers, so that ``generate`` can crop, reorder and repeat it.

A layer of this cache owns no tensors. It adapts one layer of a ``KVCache``. The network itself
fills and reads the ``KVCache``, so every layout and storage of ``KVCache`` works.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from qkvary.arch.caches import CacheOptions
from qkvary.arch.networks import LanguageModelConfig
from qkvary.nn.cache import KVCache, LayerCache


class NetworkCacheLayer(CacheLayerMixin):
    """Adapts one layer of a ``KVCache`` to transformers."""

    supports_early_init = False

    def __init__(self, cache: KVCache, index: int) -> None:
        super().__init__()
        self.cache = cache
        self.index = index
        self.rows = 0
        self.device = torch.device("cpu")
        # A window drops tokens that a rollback would need, and a state sums all tokens.
        self.is_croppable = self.stored.config.variant.reach is None

    @property
    def stored(self) -> LayerCache:
        """Return the layer of the ``KVCache`` that this object adapts."""
        return self.cache.layers[self.index]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the network allocates memory."""

    def update(self, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        """Raise a ``ValueError``. Only other models call this; ours fills the ``KVCache``."""
        raise ValueError(
            "expected keys and values of the network that this cache was made for, got those of "
            "another network"
        )

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys that a mask covers, and the index of the first key."""
        return self.stored.length + query_length, 0

    def get_seq_length(self) -> int:
        """Return the number of tokens seen."""
        return self.stored.length

    def get_max_length(self) -> int:
        """Return the maximum number of tokens, or -1 if there is none."""
        return -1 if self.stored.max_tokens is None else self.stored.max_tokens

    def activate_past_recording(self) -> None:
        """Make an empty layer with a window keep all tokens, so that any can be removed later."""
        stored = self.stored
        if stored.state is not None:
            raise ValueError(
                "expected layers that cache tokens, because this kind of generation removes tokens "
                "from the cache, got a layer with linear attention, which has only a state"
            )
        if not (self.is_croppable or stored.length):
            variant = dataclasses.replace(stored.config.variant, window=None)
            config = dataclasses.replace(stored.config, variant=variant)
            self.cache.layers[self.index] = LayerCache(config, stored.max_tokens, stored.options)
            self.is_croppable = True

    def reset(self) -> None:
        """Remove all tokens."""
        self.stored.clear()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replace row i by row ``beam_idx[i]``."""
        if self.get_seq_length():
            self.stored.reorder(beam_idx.to(self.device))
            self.rows = len(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows given by indices or a mask."""
        self.reorder_cache(torch.arange(self.rows)[indices.cpu()])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row."""
        self.reorder_cache(torch.arange(self.rows).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last ``-tokens_to_remove`` tokens; the argument must not be positive."""
        if tokens_to_remove > 0:
            raise ValueError(
                f"expected minus the number of tokens to remove, got {tokens_to_remove}"
            )
        if tokens_to_remove:
            self.stored.crop(max(0, self.get_seq_length() + tokens_to_remove))


class NetworkCache(Cache):
    """A ``KVCache`` for ``past_key_values``. A tensor that key and value share is stored once."""

    def __init__(
        self,
        network: LanguageModelConfig,
        *,
        max_tokens: int | None = None,
        options: CacheOptions | None = None,
    ) -> None:
        self.kv = KVCache(network.layers, max_tokens=max_tokens, options=options)
        super().__init__(
            layers=[NetworkCacheLayer(self.kv, index) for index in range(network.num_layers)]
        )

    @property
    def nbytes(self) -> int:
        """The size of the cache in bytes."""
        return self.kv.nbytes

    def set_batch(self, tokens: Tensor) -> None:
        """Record the batch size and device of a call."""
        for layer in self.layers:
            if isinstance(layer, NetworkCacheLayer):
                layer.rows, layer.device = tokens.shape[0], tokens.device
