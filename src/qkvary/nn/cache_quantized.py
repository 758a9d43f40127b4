"""Stores cached entries as codes with scales. The newest entries stay unquantised.

Handles tokens, their order and their bytes; ``cache_codes`` encodes the numbers.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from qkvary.arch.caches import CacheOptions
from qkvary.nn.cache_codes import (
    Codes,
    Entries,
    Scales,
    dequantize_blocks,
    dequantize_tokens,
    quantize_blocks,
    quantize_tokens,
    rotate,
    rotate_back,
)
from qkvary.nn.cache_storage import GrowingStore, Joined, PreallocatedStore


class ClaimedCodes(NamedTuple):
    """Stored codes, with room for new ones that the caller quantises itself."""

    codes: Codes
    """The codes of all tokens, with room for the tokens that are yet to be quantised."""
    scales: Scales
    newest: Entries
    """The tokens that are not quantised yet, with room for new ones at the end."""
    closing: int
    """Number of tokens, from the first of ``newest`` on, that the caller must quantise."""
    group: int
    """Number of channels that share a scale."""
    block: int
    """Number of tokens that share a scale."""


class QuantizedStore:
    """Stores entries as low-bit codes with shared scales; the newest tokens stay unquantised.

    With scales by ``token``, each group of channels of a token has a scale. A token is quantised
    once ``residual`` newer tokens have been stored. With scales by ``channel``, each channel of a
    head has a scale per block of tokens, counted from the first token seen. A block is quantised
    once it is full and ``residual`` newer tokens have been stored. Codes depend only on the
    entries, not on how many tokens arrive in one call.

    ``append`` returns the entries as they are stored after the call. So with a ``residual``, the
    rounding of the output depends on how the text was cut into calls. After a crop inside a block,
    the tokens that are stored next, up to the end of the block, get a new scale.
    """

    def __init__(
        self, options: CacheOptions, *, max_tokens: int | None = None, max_kept: int | None = None
    ) -> None:
        """Create an empty store.

        ``max_tokens`` limits the tokens seen, ``max_kept`` the tokens kept; None means no limit.
        """
        if options.bits is None:
            raise ValueError(f"expected quantised storage, got {options.storage!r}")
        self.options, self.bits, self.residual = options, options.bits, options.residual
        self.block = options.block if options.scales == "channel" else 1
        needed = self.block + self.residual - 1
        if options.scales == "channel" and max_kept is not None and needed > max_kept:
            raise ValueError(
                f"expected a block and a residual that together fit a window of {max_kept + 1} "
                f"tokens, got {self.block} and {self.residual} tokens"
            )
        most = None
        if max_tokens is not None:
            most = max(0, max_tokens - self.residual) // self.block * self.block
        if most is not None and max_kept is not None:
            most = min(most, max(0, max_kept - self.residual))
        self._codes = _make_rows(most)
        self._scales = _make_rows(None if most is None else -(-most // self.block))
        self._newest: Tensor | None = None
        self._none: Tensor | None = None
        self._runs: list[int] = []
        self._seen = 0
        self._claimed: ClaimedCodes | None = None

    @property
    def num_tokens(self) -> int:
        """Number of tokens stored."""
        return self._codes.num_tokens + self._plain

    @property
    def nbytes(self) -> int:
        """Number of bytes allocated for codes, scales and unquantised tokens."""
        plain = 0 if self._newest is None else self._newest.untyped_storage().nbytes()
        return self._codes.nbytes + self._scales.nbytes + plain

    def read(self) -> Joined | None:
        """Return the stored tokens, decoded, or None if no token has been stored yet."""
        return None if self._none is None else self.append(self._none, None)

    @torch.no_grad()
    def append(self, new: Entries, max_kept: int | None) -> Joined:
        """Store new, finite tokens, and return the old and new tokens.

        Afterwards, only the last ``max_kept`` tokens are kept.
        """
        self._none = new[:, :, :0].clone()
        waiting = new if self._newest is None else torch.cat((self._newest, new), dim=2)
        self._seen += new.shape[2]
        count, coded = waiting.shape[2], self._codes.num_tokens
        closing = self._count_closing(self._seen, count)
        whole = new.new_empty(*new.shape[:2], coded + count, new.shape[3])
        old, old_scales = self._codes.read(), self._scales.read()
        if old is not None and old_scales is not None and coded:
            self._decode(old, old_scales, self._runs, whole[:, :, :coded])
        whole[:, :, coded + closing :] = waiting[:, :, closing:]
        dropped = 0 if max_kept is None else max(0, coded + count - max_kept)
        # Remove first, then add, so that no store holds more than what is kept in the end.
        oldest = min(dropped, coded)
        self._codes.drop_first(oldest)
        self._scales.drop_first(self._cut(self._runs, oldest))
        dropped = max(0, dropped - coded)
        if closing:
            codes, scales, runs = self._encode(waiting[:, :, :closing], self._seen - count)
            self._decode(codes, scales, runs, whole[:, :, coded : coded + closing])
            # A window has dropped some of them already.
            skipped = min(dropped, closing)
            self._codes.append(codes[:, :, skipped:], None)
            self._scales.append(scales[:, :, self._cut(runs, skipped) :], None)
            self._runs += runs
        rest = waiting[:, :, closing + max(0, dropped - closing) :]
        # A copy, so that it does not keep the whole output of the projections alive.
        self._newest = rest.clone() if rest.shape[2] else None
        return whole

    def claim(self, tokens: int) -> ClaimedCodes:
        """Return memory for new tokens; the caller writes and quantises them before ``commit``."""
        if self._none is None:
            raise ValueError("expected a store that has seen a token, got an empty store")
        coded = self._codes.num_tokens
        if self.options.rotate or (self._runs and len(self._runs) * self.block != coded):
            raise ValueError(
                "expected unrotated entries in whole blocks, got rotated entries or part of a block"
            )
        rows, heads, _, width = self._none.shape
        by_token = self.options.scales == "token"
        group = min(self.options.group, width) if by_token else 1
        waiting = self._plain + tokens
        closing = self._count_closing(self._seen + tokens, waiting)
        empty = self._none.new_empty
        newest = empty(rows, heads, waiting, width)
        if self._newest is not None:
            newest[:, :, : self._plain] = self._newest
        blocks, groups = closing // self.block, -(-width // group)
        codes = empty(rows, heads, closing, -(-width * self.bits // 8), dtype=torch.uint8)
        scales = empty(rows, heads, blocks, groups, dtype=torch.float32)
        self._claimed = ClaimedCodes(
            codes=_claim(self._codes, codes),
            scales=_claim(self._scales, scales),
            newest=newest,
            closing=closing,
            group=group,
            block=self.block,
        )
        return self._claimed

    def commit(self, tokens: int) -> None:
        """Count the claimed tokens as stored.

        The caller must have quantised the ``closing`` tokens of the claimed memory.
        """
        claimed, self._claimed = self._claimed, None
        if claimed is None:
            raise RuntimeError("expected a call of claim before commit, got none")
        closing, blocks = claimed.closing, claimed.closing // self.block
        self._seen += tokens
        self._codes.commit(closing)
        self._scales.commit(blocks)
        self._runs += [self.block] * (blocks if self.options.scales == "channel" else 0)
        rest = claimed.newest[:, :, closing:]
        if closing:
            rest = rest.clone()
        self._newest = rest if rest.shape[2] else None

    def drop_last(self, tokens: int) -> None:
        """Remove the newest tokens, starting with those that are not quantised."""
        plain = min(tokens, self._plain)
        if self._newest is not None and plain:
            rest = self._newest[:, :, : self._plain - plain]
            self._newest = rest.clone() if rest.shape[2] else None
        self._seen -= tokens
        self._codes.drop_last(tokens - plain)
        self._scales.drop_last(self._cut(self._runs, tokens - plain, newest=True))

    def reorder(self, rows: Tensor) -> None:
        """Replace row i by row ``rows[i]``."""
        self._codes.reorder(rows)
        self._scales.reorder(rows)
        for name in ("_newest", "_none"):
            if getattr(self, name) is not None:
                setattr(self, name, getattr(self, name).index_select(0, rows))

    @property
    def _plain(self) -> int:
        return 0 if self._newest is None else self._newest.shape[2]

    def _count_closing(self, seen: int, waiting: int) -> int:
        """Return how many of the ``waiting`` tokens to quantise now, after ``seen`` tokens."""
        end = max(0, seen - self.residual) // self.block * self.block
        return max(0, end - (seen - waiting))

    def _encode(self, entries: Entries, first: int) -> tuple[Codes, Scales, list[int]]:
        """Return the codes, the scales and, for blocks, the number of tokens of each row of scales.

        ``first`` is the number of tokens seen before the entries.
        """
        mixed = rotate(entries) if self.options.rotate else entries
        if self.options.scales == "token":
            return (*quantize_tokens(mixed, self.bits, self.options.group), [])
        # A block can begin before these tokens only after a crop.
        begun = min(-first % self.block, entries.shape[2])
        whole = (entries.shape[2] - begun) // self.block
        parts = [
            quantize_blocks(part, self.bits, size)
            for part, size in ((mixed[:, :, :begun], begun), (mixed[:, :, begun:], self.block))
            if part.shape[2]
        ]
        codes, scales = (torch.cat(some, dim=2) for some in zip(*parts, strict=True))
        return codes, scales, [begun] * (begun > 0) + [self.block] * whole

    def _decode(self, codes: Codes, scales: Scales, runs: list[int], target: Entries) -> None:
        # Codes times scales have 24 bits, so narrower formats are rounded at the end.
        fits = target.dtype in (torch.float32, torch.float64) and not self.options.rotate
        wide = torch.promote_types(target.dtype, torch.float32)
        found = target if fits else torch.empty_like(target, dtype=wide)
        if self.options.scales == "token":
            dequantize_tokens(codes, scales, self.bits, self.options.group, found)
        else:
            dequantize_blocks(codes, scales, self.bits, runs, found)
        if not fits:
            target.copy_(rotate_back(found) if self.options.rotate else found)

    def _cut(self, runs: list[int], tokens: int, *, newest: bool = False) -> int:
        """Remove tokens from ``runs``, and return the number of rows of scales to remove.

        ``runs`` has the number of tokens that each row of scales covers. The oldest tokens are
        removed, or with ``newest`` the newest.
        """
        if self.options.scales == "token":
            return tokens
        end, emptied = -1 if newest else 0, 0
        while tokens:
            taken = min(tokens, runs[end])
            runs[end] -= taken
            tokens -= taken
            if not runs[end]:
                runs.pop(end)
                emptied += 1
        return emptied


def _make_rows(most: int | None) -> GrowingStore:
    """Return preallocated storage for ``most`` rows of codes or scales, or growing storage."""
    return GrowingStore() if most is None else PreallocatedStore(most)


def _claim(store: GrowingStore, new: Tensor) -> Tensor:
    """Return memory for rows like ``new``. The memory follows the rows of the store."""
    if not store.num_tokens:
        if not new.shape[2]:
            return new
        # Storing no rows allocates the memory.
        store.append(new[:, :, :0], None)
    return store.claim(new.shape[2])
