"""Where a cache keeps the entries of its tokens: grown, allocated beforehand, or quantised.

Knows tokens and their order. Does not know what an entry is made of, nor what reads it.
"""

from collections.abc import Iterable
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from qkvary.arch.caches import CacheStorage

Entries = Shaped[Tensor, "batch heads tokens width"]
Joined = Shaped[Tensor, "batch heads seen width"]

MOST_INT8, MOST_INT4 = 127, 7
"""The largest code of a symmetric scale."""


@runtime_checkable
class TokenStore(Protocol):
    """Entries of tokens in their order, of which the first may be dropped for good."""

    @property
    def kept(self) -> int:
        """Tokens stored."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        ...

    def append(self, new: Entries, most_kept: int | None) -> Joined:
        """Store new tokens and drop all but the last ``most_kept``; return what was and the new."""
        ...

    def drop_last(self, tokens: int) -> None:
        """Forget the newest tokens."""
        ...

    def reorder(self, rows: Tensor) -> None:
        """Let row i become what row ``rows[i]`` was."""
        ...


class GrowingStore:
    """Entries in a tensor that is as long as what is kept."""

    def __init__(self) -> None:
        """Start empty."""
        self._stored: Tensor | None = None

    @property
    def kept(self) -> int:
        """Tokens stored."""
        return 0 if self._stored is None else self._stored.shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return 0 if self._stored is None else self._stored.untyped_storage().nbytes()

    def append(self, new: Entries, most_kept: int | None) -> Joined:
        """Store new tokens; see :class:`TokenStore`."""
        parts = (new,) if self._stored is None else (self._stored, new)
        # cat copies: what is kept must not hold on to the projections' whole output.
        joined = torch.cat(parts, dim=2).contiguous()
        dropped = 0 if most_kept is None else max(0, joined.shape[2] - most_kept)
        self._stored = _own(joined[:, :, dropped:]) if dropped else joined
        return joined

    def drop_last(self, tokens: int) -> None:
        """Forget the newest tokens."""
        if self._stored is not None and tokens:
            self._stored = _own(self._stored[:, :, : self.kept - tokens])

    def drop_first(self, tokens: int) -> None:
        """Forget the oldest tokens."""
        if self._stored is not None and tokens:
            self._stored = _own(self._stored[:, :, tokens:])

    def reorder(self, rows: Tensor) -> None:
        """Let row i become what row ``rows[i]`` was."""
        if self._stored is not None:
            self._stored = self._stored.index_select(0, rows)


class PreallocatedStore:
    """Entries in a buffer of a fixed number of tokens, written in place.

    What ``append`` returns is a view of the buffer while nothing was dropped: read it before the
    next call.
    """

    def __init__(self, capacity: int) -> None:
        """Start empty.

        Args:
            capacity: Tokens that the buffer has room for.
        """
        self.capacity = capacity
        self._buffer: Tensor | None = None
        self._kept = 0

    @property
    def kept(self) -> int:
        """Tokens stored."""
        return self._kept

    @property
    def nbytes(self) -> int:
        """Bytes allocated, used or not."""
        return 0 if self._buffer is None else self._buffer.untyped_storage().nbytes()

    def append(self, new: Entries, most_kept: int | None) -> Joined:
        """Store new tokens; see :class:`TokenStore`.

        Raises:
            ValueError: if they do not fit and none may be dropped.
        """
        buffer = self._buffer
        if buffer is None or (self._kept == 0 and not _is_like(buffer, new)):
            batch, heads, _, width = new.shape
            buffer = self._buffer = new.new_empty(batch, heads, self.capacity, width)
        total = self._kept + new.shape[2]
        if total <= self.capacity:
            buffer[:, :, self._kept : total] = new
            self._kept = total
            return buffer[:, :, :total]
        if most_kept is None or most_kept > self.capacity:
            raise ValueError(f"expected at most {self.capacity} tokens, got {total}")
        joined = torch.cat((buffer[:, :, : self._kept], new), dim=2)
        self._kept = most_kept
        buffer[:, :, :most_kept] = joined[:, :, total - most_kept :]
        return joined

    def drop_last(self, tokens: int) -> None:
        """Forget the newest tokens; the memory stays."""
        self._kept -= tokens

    def reorder(self, rows: Tensor) -> None:
        """Let row i become what row ``rows[i]`` was."""
        if self._buffer is not None:
            self._buffer = self._buffer.index_select(0, rows)


class QuantizedStore:
    """Entries as codes of 8 or 4 bits with a scale for each group of channels of each token.

    A token's codes depend on that token alone, so that they never change when others arrive. The
    last ``residual`` tokens are kept as they are. ``|x - x'| <= s / 2`` with
    ``s = max |x| / (2^(bits - 1) - 1)`` over a group, and one 32-bit scale a group.
    """

    def __init__(self, bits: Literal[8, 4], *, group: int, residual: int) -> None:
        """Start empty.

        Args:
            bits: Of a code.
            group: Channels that share a scale.
            residual: Newest tokens that are not quantised.
        """
        if group < 1 or residual < 0:
            raise ValueError(
                f"expected a group of at least 1 channel and a residual of at least 0 tokens, got "
                f"{group} and {residual}"
            )
        self.bits, self.group, self.residual = bits, group, residual
        self._codes, self._scales, self._newest = GrowingStore(), GrowingStore(), GrowingStore()
        self._width = 0

    @property
    def kept(self) -> int:
        """Tokens stored."""
        return self._codes.kept + self._newest.kept

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and unquantised tokens."""
        return self._codes.nbytes + self._scales.nbytes + self._newest.nbytes

    def append(self, new: Entries, most_kept: int | None) -> Joined:
        """Store new tokens; see :class:`TokenStore`. They have to be finite."""
        self._width = new.shape[3]
        waiting = self._newest.append(new, None)
        closed = max(0, waiting.shape[2] - self.residual)
        whole = waiting
        if closed or self._codes.kept:
            codes, scales = quantize(waiting[:, :, :closed], self.bits, self.group)
            codes, scales = self._codes.append(codes, None), self._scales.append(scales, None)
            read = dequantize(codes, scales, self.bits, self.group, self._width).to(new.dtype)
            whole = torch.cat((read, waiting[:, :, closed:]), dim=2)
        self._newest = GrowingStore()
        if waiting.shape[2] > closed:
            self._newest.append(waiting[:, :, closed:], None)
        if most_kept is not None:
            self._drop_first(max(0, whole.shape[2] - most_kept))
        return whole

    def drop_last(self, tokens: int) -> None:
        """Forget the newest tokens, quantised ones where there are no others."""
        plain = min(tokens, self._newest.kept)
        self._newest.drop_last(plain)
        self._codes.drop_last(tokens - plain)
        self._scales.drop_last(tokens - plain)

    def reorder(self, rows: Tensor) -> None:
        """Let row i become what row ``rows[i]`` was."""
        for store in (self._codes, self._scales, self._newest):
            store.reorder(rows)

    def _drop_first(self, tokens: int) -> None:
        coded = min(tokens, self._codes.kept)
        for store, dropped in (
            (self._codes, coded),
            (self._scales, coded),
            (self._newest, tokens - coded),
        ):
            store.drop_first(dropped)


def check_finite(entries: Iterable[Entries]) -> None:
    """Refuse what has no scale.

    Raises:
        ValueError: for NaN or infinity.
    """
    if not all(bool(torch.isfinite(tensor).all()) for tensor in entries):
        raise ValueError("expected finite entries in a quantised cache, got NaN or infinity")


def quantize(
    entries: Entries, bits: int, group: int
) -> tuple[Tensor, Float[Tensor, "batch heads tokens groups"]]:
    """Codes and scales of entries, each token by itself.

    Returns:
        Codes as bytes, [batch, heads, tokens, width] for 8 bits and two codes a byte for 4, and
        the scale of each group.
    """
    batch, heads, tokens, width = entries.shape
    groups = -(-width // group)
    padded = entries.new_zeros(batch, heads, tokens, groups * group, dtype=torch.float32)
    padded[..., :width] = entries
    parts = padded.unflatten(-1, (groups, group))
    most = MOST_INT8 if bits == 8 else MOST_INT4
    scales = parts.abs().amax(dim=-1) / most
    # A group of zeros, or of numbers too small to have a scale, is a group of zeros.
    divisors = torch.where(scales > 0, scales, 1.0)
    codes = (parts / divisors[..., None]).round().clamp(-most, most).to(torch.int8)
    flat = codes.flatten(-2)[..., :width]
    if bits == 8:
        return flat.view(torch.uint8), scales
    even = torch.nn.functional.pad(flat, (0, width % 2)).unflatten(-1, (-1, 2)) + 8
    return (even[..., 0] | (even[..., 1] << 4)).to(torch.uint8), scales


def dequantize(
    codes: Tensor,
    scales: Float[Tensor, "batch heads tokens groups"],
    bits: int,
    group: int,
    width: int,
) -> Float[Tensor, "batch heads tokens width"]:
    """The entries that codes stand for, in 32 bits."""
    if bits == 8:
        signed = codes.view(torch.int8)
    else:
        both = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
        signed = both[..., :width].to(torch.int8) - 8
    return signed.float() * scales.repeat_interleave(group, dim=-1)[..., :width]


def make_store(
    storage: CacheStorage, *, capacity: int | None, group: int, residual: int
) -> TokenStore:
    """The store of a kind.

    Args:
        storage: The kind.
        capacity: Tokens that a preallocated one has room for.
        group: Channels that share a scale in a quantised one.
        residual: Newest tokens that a quantised one keeps as they are.

    Raises:
        ValueError: for a preallocated store without a number of tokens.
    """
    if storage == "growing":
        return GrowingStore()
    if storage == "preallocated":
        if capacity is None:
            raise ValueError("expected max_tokens for a preallocated cache, got None")
        return PreallocatedStore(capacity)
    return QuantizedStore(8 if storage == "int8" else 4, group=group, residual=residual)


def _is_like(buffer: Tensor, new: Tensor) -> bool:
    """Whether both have one form, the number of tokens apart."""
    shapes = [(*tensor.shape[:2], tensor.shape[3]) for tensor in (buffer, new)]
    return shapes[0] == shapes[1] and (buffer.dtype, buffer.device) == (new.dtype, new.device)


def _own(view: Tensor) -> Tensor:
    """A copy that does not hold on to the memory of what a view leaves out."""
    return view.clone(memory_format=torch.contiguous_format)
