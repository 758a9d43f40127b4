"""Our cache as one of transformers: ``generate`` crops, reorders and repeats what we store.

A layer here owns no tensors: it speaks for one layer of a ``KVCache``, which the network fills and
reads by itself. So every layout and storage of ``KVCache`` works, and each holds what it says.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from qkvary.arch.caches import CacheOptions
from qkvary.arch.networks import LanguageModelConfig
from qkvary.nn.cache import DEFAULT_OPTIONS, KVCache, LayerCache


class NetworkCacheLayer(CacheLayerMixin):
    """What transformers sees of one layer of a ``KVCache``."""

    supports_early_init = False

    def __init__(self, cache: KVCache, index: int) -> None:
        """Speak for a layer.

        Args:
            cache: What holds the layer.
            index: Its number.
        """
        super().__init__()
        self.cache = cache
        self.index = index
        self.rows = 0
        self.device = torch.device("cpu")
        # A window drops what a rollback would need.
        self.is_croppable = self.stored.config.variant.window is None

    @property
    def stored(self) -> LayerCache:
        """What the network fills and reads."""
        return self.cache.layers[self.index]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: memory is taken when the network stores."""

    def update(
        self,
        key_states: Tensor,  # noqa: ARG002 -- refused, whatever it is
        value_states: Tensor,  # noqa: ARG002
        *args: Any,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Refuse the keys and values of another model.

        Raises:
            ValueError: always; our networks store by themselves.
        """
        raise ValueError(
            "expected the network that this cache was made for, got keys and values of another"
        )

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that a mask has to cover, and the first of them."""
        return self.stored.length + query_length, 0

    def get_seq_length(self) -> int:
        """Tokens seen."""
        return self.stored.length

    def get_max_length(self) -> int:
        """The most tokens, or -1."""
        return -1 if self.stored.max_tokens is None else self.stored.max_tokens

    def offload(self) -> None:
        """Refuse.

        Raises:
            ValueError: always.
        """
        raise ValueError("expected a cache on the device of its network, got an offloaded one")

    def prefetch(self) -> None:
        """Nothing, as nothing is offloaded."""

    def activate_past_recording(self) -> None:
        """Be ready to take tokens back: an empty layer with a window will drop none of them.

        The window itself is the network's, which does not look at more than it should.
        """
        stored = self.stored
        if not (self.is_croppable or stored.length):
            variant = dataclasses.replace(stored.config.variant, window=None)
            config = dataclasses.replace(stored.config, variant=variant)
            self.cache.layers[self.index] = LayerCache(config, stored.max_tokens, stored.options)
            self.is_croppable = True

    def reset(self) -> None:
        """Forget all."""
        self.stored.clear()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let row i become what row ``beam_idx[i]`` was."""
        if self.get_seq_length():
            self.stored.reorder(beam_idx.to(self.device))
            self.rows = len(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows, given by number or by a mask."""
        self.reorder_cache(torch.arange(self.rows)[indices.cpu()])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row."""
        self.reorder_cache(torch.arange(self.rows).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens, whose number is given as a negative one.

        Raises:
            ValueError: for a positive number, or where a window has dropped what came before.
        """
        if tokens_to_remove > 0:
            raise ValueError(
                f"expected a negative number of tokens to crop by, got {tokens_to_remove}"
            )
        if tokens_to_remove:
            self.stored.crop(max(0, self.get_seq_length() + tokens_to_remove))


class NetworkCache(Cache):
    """A ``KVCache`` for ``past_key_values``: the distinct sources of a network, and no more."""

    def __init__(
        self,
        network: LanguageModelConfig,
        *,
        max_tokens: int | None = None,
        options: CacheOptions = DEFAULT_OPTIONS,
    ) -> None:
        """Start empty.

        Args:
            network: Whose layers are cached.
            max_tokens: Refuse to see more than this many tokens.
            options: How they are stored.
        """
        self.kv = KVCache(network.layers, max_tokens=max_tokens, options=options)
        super().__init__(
            layers=[NetworkCacheLayer(self.kv, index) for index in range(network.num_layers)]
        )

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.kv.nbytes

    def note_batch(self, tokens: Tensor) -> None:
        """Remember of the tokens of a call how many rows there are, and on which device."""
        for layer in self.layers:
            if isinstance(layer, NetworkCacheLayer):
                layer.rows, layer.device = tokens.shape[0], tokens.device
