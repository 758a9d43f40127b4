"""Storage for the entries of a cache, whatever they contain. It is preallocated or grows."""

from dataclasses import dataclass

import torch
from jaxtyping import Shaped
from torch import Tensor

from qkvary.nn.cache_codes import Entries
from qkvary.nn.linear_attention import State

Joined = Shaped[Tensor, "batch heads seen width"]


class GrowingStore:
    """Stores entries of tokens in order, in a tensor that is exactly as long as needed."""

    def __init__(self) -> None:
        self._stored: Tensor | None = None

    @property
    def num_tokens(self) -> int:
        """Number of tokens stored."""
        return 0 if self._stored is None else self._stored.shape[2]

    @property
    def nbytes(self) -> int:
        """Number of bytes allocated, used or not."""
        return 0 if self._stored is None else self._stored.untyped_storage().nbytes()

    def read(self) -> Joined | None:
        """Return the stored tokens, or None if no token has been stored yet."""
        return self._stored

    def append(self, new: Entries, max_kept: int | None) -> Joined:
        """Store new tokens, and return the old and new tokens; keep the last ``max_kept``."""
        parts = (new,) if self._stored is None else (self._stored, new)
        # cat copies, so that it does not keep the whole output of the projections alive.
        joined = torch.cat(parts, dim=2).contiguous()
        dropped = 0 if max_kept is None else max(0, joined.shape[2] - max_kept)
        self._stored = _own(joined[:, :, dropped:]) if dropped else joined
        return joined

    def claim(self, tokens: int) -> Joined:
        """Return memory that the caller fills with new tokens before it calls ``commit``."""
        raise ValueError(f"expected storage with room for {tokens} tokens, got storage that grows")

    def commit(self, tokens: int) -> None:
        """Record that the caller has written this many tokens; a growing store needs no record."""

    def drop_last(self, tokens: int) -> None:
        """Remove the newest tokens."""
        if self._stored is not None and tokens:
            self._stored = _own(self._stored[:, :, : self.num_tokens - tokens])

    def drop_first(self, tokens: int) -> None:
        """Remove the oldest tokens."""
        if self._stored is not None and tokens:
            self._stored = _own(self._stored[:, :, tokens:])

    def reorder(self, rows: Tensor) -> None:
        """Replace row i by row ``rows[i]``."""
        if self._stored is not None:
            self._stored = self._stored.index_select(0, rows)


class PreallocatedStore(GrowingStore):
    """Stores entries in place, in a buffer for a fixed number of tokens.

    Unless tokens are dropped, ``append`` returns a view of the buffer, valid until the next call.
    """

    def __init__(self, capacity: int) -> None:
        """Start empty. Storing the first tokens allocates a buffer for ``capacity`` tokens."""
        super().__init__()
        self.capacity = capacity
        self._num_tokens = 0

    @property
    def num_tokens(self) -> int:
        """Number of tokens stored."""
        return self._num_tokens

    def read(self) -> Joined | None:
        """Return the stored tokens as a view of the buffer, or None if there are none yet."""
        return None if self._stored is None else self._stored[:, :, : self._num_tokens]

    def append(self, new: Entries, max_kept: int | None) -> Joined:
        """Store new tokens; see :class:`GrowingStore`."""
        buffer = self._stored
        if buffer is None or (self._num_tokens == 0 and not _is_like(buffer, new)):
            batch, heads, _, width = new.shape
            buffer = self._stored = new.new_empty(batch, heads, self.capacity, width)
        total = self._num_tokens + new.shape[2]
        if total <= self.capacity:
            buffer[:, :, self._num_tokens : total] = new
            self._num_tokens = total
            return buffer[:, :, :total]
        joined = torch.cat((buffer[:, :, : self._num_tokens], new), dim=2)
        if max_kept is None:
            # More scales than expected, because a crop has cut blocks of tokens.
            self._stored, self._num_tokens, self.capacity = joined, total, total
            return joined
        self._num_tokens = max_kept
        buffer[:, :, :max_kept] = joined[:, :, total - max_kept :]
        return joined

    def view(self, tokens: int, place: Tensor) -> "PlacedStore":
        """Return a store that uses the memory of the first ``tokens`` tokens.

        The store writes new entries at ``place``.
        """
        if self._stored is None or tokens > self.capacity:
            room = 0 if self._stored is None else self.capacity
            raise ValueError(f"expected a view of at most {room} tokens, got {tokens}")
        return PlacedStore(self._stored[:, :, :tokens], place)

    def claim(self, tokens: int) -> Joined:
        """Return the whole buffer; see :class:`GrowingStore`."""
        if self._stored is None or self._num_tokens + tokens > self.capacity:
            room = 0 if self._stored is None else self.capacity - self._num_tokens
            raise ValueError(f"expected at most {room} tokens to write, got {tokens}")
        return self._stored

    def commit(self, tokens: int) -> None:
        """Count tokens that the caller has written."""
        self._num_tokens += tokens

    def drop_last(self, tokens: int) -> None:
        """Remove the newest tokens; the memory stays allocated."""
        self._num_tokens -= tokens

    def drop_first(self, tokens: int) -> None:
        """Remove the oldest tokens; the memory stays allocated."""
        used = self.read()
        if used is not None and tokens:
            self._num_tokens -= tokens
            used[:, :, : self._num_tokens] = used[:, :, tokens:].clone()

    def reorder(self, rows: Tensor) -> None:
        """Replace row i by row ``rows[i]``.

        The memory stays in place if the number of rows does not change.
        """
        used = self.read()
        if used is None or len(rows) != len(used):
            super().reorder(rows)
        else:
            used.copy_(used.index_select(0, rows))


class PlacedStore(PreallocatedStore):
    """Writes one token into the memory of another store, at a slot that a tensor gives.

    The slot is a value on the device, so that a step can be replayed as a CUDA graph. ``append``
    also writes the new token to the last slot, where callers expect it.
    """

    def __init__(self, memory: Entries, place: Tensor) -> None:
        """Use ``memory`` as the storage; ``place`` is the slot where the next token is written."""
        super().__init__(memory.shape[2])
        self._stored, self._place, self._num_tokens = memory, place, memory.shape[2] - 1

    def append(self, new: Entries, max_kept: int | None) -> Joined:
        """Write one new token and return the whole buffer, including unused slots."""
        del max_kept
        memory = self._stored
        if memory is None or new.shape[2] != 1:
            raise ValueError(f"expected one token, got {new.shape[2]}")
        self._num_tokens += 1
        memory.index_copy_(2, self._place, new)
        memory[:, :, -1:] = new
        return memory


@dataclass(slots=True)
class StateStore:
    """Stores the state of linear attention: sums over all tokens seen, instead of entries."""

    sums: State | None = None
    """The sums over all tokens seen; None before the first token."""

    @property
    def nbytes(self) -> int:
        """Number of bytes that the state takes."""
        parts = (part for part in self.sums or () if part is not None)
        return sum(part.untyped_storage().nbytes() for part in parts)

    def reorder(self, rows: Tensor) -> None:
        """Replace row i by row ``rows[i]``."""
        if self.sums is not None:
            values, keys = self.sums
            keys = None if keys is None else keys.index_select(0, rows)
            self.sums = State(values.index_select(0, rows), keys)


def _is_like(buffer: Tensor, new: Tensor) -> bool:
    shapes = [(*tensor.shape[:2], tensor.shape[3]) for tensor in (buffer, new)]
    return shapes[0] == shapes[1] and (buffer.dtype, buffer.device) == (new.dtype, new.device)


def _own(view: Tensor) -> Tensor:
    return view.clone(memory_format=torch.contiguous_format)
