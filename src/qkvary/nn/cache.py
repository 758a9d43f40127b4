"""The cache for decoding. Each layer stores only the tensors that its keys and values need.

The cache belongs to the caller, who chooses layout and storage; only quantised storage changes
results. By default it stores the tensors from which keys and values are made, before any rotation,
so that one tensor can serve as both.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.caches import CacheOptions
from qkvary.nn.cache_codes import check_finite
from qkvary.nn.cache_quantized import ClaimedCodes, QuantizedStore
from qkvary.nn.cache_storage import GrowingStore, PreallocatedStore, StateStore
from qkvary.nn.decoding.decode import LAYER, pinned

Parts = Mapping[str, Float[Tensor, "batch _ tokens _"]]
Claimed = Tensor | ClaimedCodes
"""The memory for new entries: a buffer, or codes with scales."""


class LayerCache:
    """The cache of one layer. It stores only K if the value is also computed from K.

    A layer with a state, as in linear attention, stores the state instead of tokens. A layer with a
    window of w tokens keeps the last w - 1 tokens. A window counts tokens including padding, so
    every row drops the same tokens, and a dropped token is never needed again.
    """

    def __init__(
        self,
        config: AttentionConfig,
        max_tokens: int | None = None,
        options: CacheOptions | None = None,
    ) -> None:
        """Create an empty cache. See :class:`KVCache` for the arguments and errors."""
        reach = config.variant.reach
        if config.turns_by_length and max_tokens is None:
            raise ValueError(
                "expected max_tokens for a layer whose rotary positions depend on the length of "
                "the text, got none"
            )
        self.config = config
        self.state = StateStore() if config.variant.keeps_state else None
        """The state of a core that sums over all tokens; None for other cores."""
        options = options or CacheOptions()
        # Layouts and storage apply to entries of tokens, not to states.
        self.options = options if self.state is None else CacheOptions(kernel=options.kernel)
        kernel = pinned(options.kernel)
        self.kernel = None if kernel == LAYER else kernel
        """The kernel that computes attention for a few new tokens; None for the layer's own
        computation."""
        self.max_tokens = max_tokens
        self._max_kept = None if reach is None else reach - 1
        self.length = 0
        """Number of tokens seen; masks and positions must cover all of them."""
        self._rows: int | None = None
        self._stores: dict[str, GrowingStore | QuantizedStore] = {}
        # Options that do not fit are refused before the first token.
        self._make_store()

    @property
    def num_stored(self) -> int:
        """Number of tokens stored. These are the newest of the tokens seen."""
        return next(iter(self._stores.values())).num_tokens if self._stores else 0

    @property
    def nbytes(self) -> int:
        """Number of bytes used."""
        state = 0 if self.state is None else self.state.nbytes
        return state + sum(store.nbytes for store in self._stores.values())

    def append(self, new: Parts) -> dict[str, Tensor]:
        """Store the new tokens and return all stored tokens, the new ones last.

        If a call adds more tokens than the layer keeps, the oldest of them are returned but not
        kept.

        Raises:
            ValueError: if the tokens do not fit ``max_tokens`` or have another batch size.
        """
        first = next(iter(new.values()))
        rows, tokens = first.shape[0], first.shape[2]
        self._check_room(tokens, rows)
        if self.options.is_quantized and first.device.type == "cpu":
            # On other devices this check would make every layer wait; there the logits show numbers
            # that are not finite. Checked before anything is stored, so that a refused call does
            # not change the cache.
            check_finite(new.values())
        joined: dict[str, Tensor] = dict(new)
        for name, entries in new.items() if self.state is None else ():
            if name not in self._stores:
                self._stores[name] = self._make_store()
            joined[name] = self._stores[name].append(entries, self._max_kept)
        self.length, self._rows = self.length + tokens, rows
        return joined

    def _make_store(self) -> GrowingStore | QuantizedStore:
        options, limit, max_kept = self.options, self.max_tokens, self._max_kept
        if options.storage == "growing":
            return GrowingStore()
        if options.is_quantized:
            return QuantizedStore(options, max_tokens=limit, max_kept=max_kept)
        if limit is None:
            raise ValueError("expected max_tokens for a preallocated cache, got None")
        return PreallocatedStore(limit if max_kept is None else min(limit, max_kept))

    def _check_room(self, tokens: int, rows: int) -> None:
        if self._rows is not None and rows != self._rows:
            raise ValueError(f"expected a batch of {self._rows}, as in the cache, got {rows}")
        total = self.length + tokens
        if self.max_tokens is not None and total > self.max_tokens:
            raise ValueError(f"expected at most {self.max_tokens} tokens, got {total}")

    def read(self) -> dict[str, Tensor]:
        """Return all stored entries by name; the mapping is empty before the first token."""
        stored = {name: store.read() for name, store in self._stores.items()}
        return {name: entries for name, entries in stored.items() if entries is not None}

    def claim(self, tokens: int, rows: int) -> dict[str, Claimed]:
        """Return memory for new tokens; the caller fills it and then calls ``commit``.

        Each name maps to the whole buffer, [batch, heads, capacity, width]. The first ``length``
        tokens of the buffer are used. In a quantised cache, each name maps to the codes and the
        newest tokens.
        """
        if self._rows is None:
            raise ValueError("expected a cache that has seen a token, got an empty cache")
        self._check_room(tokens, rows)
        return {name: store.claim(tokens) for name, store in self._stores.items()}

    def commit(self, tokens: int) -> None:
        """Count claimed tokens as seen, once the caller has written them."""
        for store in self._stores.values():
            store.commit(tokens)
        self.length += tokens

    @property
    def has_fixed_memory(self) -> bool:
        """Whether tokens never move in memory.

        This needs preallocated memory that is in use, and no window, state or codes.
        """
        stores = self._stores.values()
        kept = self.state is None and self._max_kept is None and bool(stores)
        return kept and all(type(store) is PreallocatedStore for store in stores)

    def view(self, tokens: int, place: Tensor) -> "LayerCache":
        """Return a cache that uses the memory of the first ``tokens`` slots of this cache.

        All slots but the last count as already seen. ``append`` writes one new token twice: to the
        last slot, and to the slot ``place``, a number on the cache's device. It returns all
        entries.
        """
        if not self.has_fixed_memory:
            raise ValueError(
                "expected a preallocated cache with at least one token and no window or state, got "
                "another cache"
            )
        other = LayerCache(self.config, options=self.options, max_tokens=tokens)
        for name, store in self._stores.items():
            if isinstance(store, PreallocatedStore):
                other._stores[name] = store.view(tokens, place)
        other.length, other._rows = tokens - 1, self._rows
        return other

    def crop(self, tokens: int) -> None:
        """Remove all but the first ``tokens`` of the tokens seen; errors as in ``KVCache.crop``."""
        self.check_crop(tokens)
        if self.state is not None and tokens == 0:
            self.state.sums = None
        for store in self._stores.values():
            store.drop_last(self.length - tokens)
        self.length = tokens

    def check_crop(self, tokens: int) -> None:
        """Raise an error if ``crop(tokens)`` would raise one. Nothing is changed."""
        if not 0 <= tokens <= self.length:
            raise ValueError(f"expected to keep 0 to {self.length} tokens, got {tokens}")
        dropped = self.length - tokens
        if self.state is not None:
            if tokens and dropped:
                raise ValueError(
                    f"expected to keep 0 or {self.length} tokens, got {tokens}; a state is the sum "
                    "of all tokens"
                )
            return
        needed = tokens if self._max_kept is None else min(tokens, self._max_kept)
        if self.num_stored - dropped < needed:
            raise ValueError(
                f"expected to remove at most {max(0, self.num_stored - needed)} tokens, got "
                f"{dropped}; the window has dropped earlier tokens that would be needed"
            )

    def clear(self) -> None:
        """Remove all tokens; preallocated memory stays."""
        if self.options.storage == "preallocated":
            for store in self._stores.values():
                store.drop_last(store.num_tokens)
        else:
            # Growing tensors hold no memory worth keeping, only sizes that may not fit the next
            # text.
            self._stores.clear()
        if self.state is not None:
            self.state.sums = None
        self.length, self._rows = 0, None

    def reorder(self, rows: Tensor) -> None:
        """Replace row i by row ``rows[i]``, as a beam search needs."""
        for store in (*self._stores.values(), *filter(None, (self.state,))):
            store.reorder(rows)
        self._rows = None if self._rows is None else rows.shape[0]


class KVCache:
    """The cache of a network: one ``LayerCache`` per layer.

    The class has its usual name even if the layers store only K.
    """

    def __init__(
        self,
        layers: Sequence[AttentionConfig],
        *,
        max_tokens: int | None = None,
        options: CacheOptions | None = None,
    ) -> None:
        """Create an empty cache.

        Args:
            layers: The attention layers of the network: ``model.config.layers``.
            max_tokens: The maximum number of tokens seen, including those no longer stored.
            options: Layout and storage of the entries.

        Raises:
            ValueError: if quantisation blocks are too large for a window. Also if ``max_tokens``
                is missing, but the storage is preallocated or positions depend on the length of
                the text.
        """
        given: Any = layers
        if not (
            isinstance(given, Sequence) and all(isinstance(one, AttentionConfig) for one in given)
        ):
            raise ValueError(
                "expected the attention layers of a network, such as model.config.layers or "
                f"[layer.config], got {type(given).__name__}"
            )
        self.options = options or CacheOptions()
        self.layers = [LayerCache(config, max_tokens, self.options) for config in layers]

    @property
    def length(self) -> int:
        """Number of tokens seen, the same in all layers unless a call failed midway."""
        lengths = {layer.length for layer in self.layers}
        if len(lengths) > 1:
            raise ValueError(
                f"expected layers that have seen equally many tokens, got {min(lengths)} to "
                f"{max(lengths)} after a call that failed; choices: crop to {min(lengths)}, clear"
            )
        return lengths.pop()

    def view(self, tokens: int, place: Tensor) -> "KVCache":
        """Return a cache that consists of a view of every layer; see :meth:`LayerCache.view`."""
        other = KVCache((), max_tokens=tokens, options=self.options)
        other.layers = [layer.view(tokens, place) for layer in self.layers]
        return other

    @property
    def nbytes(self) -> int:
        """Number of bytes used by all layers."""
        return sum(layer.nbytes for layer in self.layers)

    def crop(self, tokens: int) -> None:
        """Remove all but the first ``tokens`` of the tokens seen.

        Raises:
            ValueError: if later tokens would need tokens that a window has dropped already, or if
                only some of the tokens that a state sums up would be removed.
        """
        for layer in self.layers:
            layer.check_crop(tokens)
        for layer in self.layers:
            layer.crop(tokens)

    def clear(self) -> None:
        """Remove all tokens; preallocated memory stays."""
        for layer in self.layers:
            layer.clear()

    def reorder(self, rows: Tensor) -> None:
        """Replace row i by row ``rows[i]``, as in a beam search. The number of rows may change."""
        for layer in self.layers:
            layer.reorder(rows)
