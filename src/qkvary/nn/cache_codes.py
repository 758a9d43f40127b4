"""Codes and scales of cached entries: quantises numbers to low-bit integers, and decodes them.

A code is ``c = round(x / s)``. The scale ``s`` is ``max |x| / (2^(bits - 1) - 1)`` over the numbers
that share it, rounded up to 32 bits, so that no code leaves its range and ``|x - c s| <= s / 2``.
Quotients are computed in 64 bits, because in 32 bits a quotient near 100.5 can be rounded to the
wrong integer.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Int8, Shaped, UInt8
from torch import Tensor

Entries = Shaped[Tensor, "batch heads tokens width"]
Codes = UInt8[Tensor, "batch heads tokens bytes"]
Scales = Float[Tensor, "batch heads _ _"]

LIMIT = 2.0**120
"""Entries must be smaller than this, so that scales and rotated entries stay finite in 32 bits."""

CACHED = "entries in a quantised cache"


def describe_infinite(what: str) -> str:
    """Return the error message for infinite or NaN numbers, for which no scale exists."""
    return f"expected finite {what}, got NaN, infinity or a number of at least 2^120"


def check_finite(numbers: Iterable[Tensor], what: str = CACHED) -> None:
    """Check that no number is NaN, infinite, or so large that its rotation overflows in 32 bits."""
    if not all(bool((tensor.abs() < LIMIT).all()) for tensor in numbers):
        raise ValueError(describe_infinite(what))


def quantize_tokens(entries: Entries, bits: int, group: int) -> tuple[Codes, Scales]:
    """Return packed codes, and scales [batch, heads, tokens, groups] for groups of channels."""
    width = entries.shape[3]
    padding = -width % group
    exact = torch.nn.functional.pad(_exact(entries), (0, padding)).unflatten(-1, (-1, group))
    scales = _scales(exact.abs().amax(dim=-1), bits)
    codes = _round(exact, scales[..., None])
    return pack(codes.flatten(-2)[..., :width], bits), scales


def quantize_blocks(entries: Entries, bits: int, block: int) -> tuple[Codes, Scales]:
    """Return packed codes, and scales [batch, heads, blocks, width] for blocks of tokens."""
    exact = _exact(entries).unflatten(2, (-1, block))
    scales = _scales(exact.abs().amax(dim=3), bits)
    return pack(_round(exact, scales[:, :, :, None]).flatten(2, 3), bits), scales


def dequantize_tokens(codes: Codes, scales: Scales, bits: int, group: int, out: Entries) -> Entries:
    """Decode codes into ``out`` and return ``out``.

    There is one scale per group of channels of a token.
    """
    width = out.shape[3]
    # Copy the codes, then scale in place: multiplying into a new tensor moves twice as much memory.
    out.copy_(unpack(codes, bits, width))
    if scales.shape[3] == 1:
        return out.mul_(scales)
    if width % group:
        return out.mul_(scales.repeat_interleave(group, dim=3)[..., :width])
    out.unflatten(3, (-1, group)).mul_(scales[..., None])
    return out


def dequantize_blocks(
    codes: Codes, scales: Scales, bits: int, runs: Sequence[int], out: Entries
) -> Entries:
    """Decode codes into ``out`` and return ``out``. Each channel has one scale per run of tokens.

    ``runs`` has the number of tokens of each run, in order; scales are [batch, heads, runs, width].
    """
    out.copy_(unpack(codes, bits, out.shape[3]))
    token = row = 0
    # In place, group by group: a list of all runs would have to be copied to the device.
    for size, group in itertools.groupby(runs):
        count = len(list(group))
        part = out[:, :, token : token + size * count].unflatten(2, (count, size))
        part.mul_(scales[:, :, row : row + count, None])
        token, row = token + size * count, row + count
    return out


def pack(codes: Int8[Tensor, "*rows width"], bits: int) -> UInt8[Tensor, "*rows bytes"]:
    """Pack the codes of each row side by side into bytes, starting with the lowest bits."""
    if bits == 8:
        return codes.view(torch.uint8)
    width = codes.shape[-1]
    # Eight codes fill whole bytes, whatever their number of bits.
    padded = torch.nn.functional.pad(codes, (0, -width % 8)).unflatten(-1, (-1, 8))
    shifts = torch.arange(8, device=codes.device) * bits
    joined = ((padded.long() + 2 ** (bits - 1)) << shifts).sum(dim=-1)
    parts = joined[..., None] >> (torch.arange(bits, device=codes.device) * 8)
    size = math.ceil(width * bits / 8)
    # A copy, so that rows do not keep the padding's bytes alive.
    return (parts & 255).to(torch.uint8).flatten(-2)[..., :size].contiguous()


def unpack(codes: UInt8[Tensor, "*rows bytes"], bits: int, width: int) -> Int8[Tensor, "*rows _"]:
    """Return the codes of packed rows. This undoes ``pack``."""
    if bits == 8:
        return codes.view(torch.int8)
    if 8 % bits == 0:
        # A byte holds a few whole codes; looking them up is twice as fast as shifting.
        found = _codes_of_bytes(bits, codes.device).index_select(0, codes.flatten().int())
        rows = (*codes.shape[:-1], codes.shape[-1] * 8 // bits)
        return found.view(torch.int8).view(rows)[..., :width]
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % bits))
    parts = padded.unflatten(-1, (-1, bits)).long()
    joined = (parts << (torch.arange(bits, device=codes.device) * 8)).sum(dim=-1)
    shifted = joined[..., None] >> (torch.arange(8, device=codes.device) * bits)
    found = (shifted & (2**bits - 1)).flatten(-2)[..., :width]
    return found.to(torch.int8) - 2 ** (bits - 1)


@functools.lru_cache(maxsize=8)
def _codes_of_bytes(bits: int, device: torch.device) -> Tensor:
    """Return the codes packed in each of the 256 byte values: an integer with one byte per code."""
    shifts = torch.arange(0, 8, bits)
    codes = (torch.arange(256)[:, None] >> shifts & 2**bits - 1) - 2 ** (bits - 1)
    joined = torch.int16 if bits == 4 else torch.int32
    return codes.to(torch.int8).view(joined).flatten().to(device)


@functools.lru_cache(maxsize=32)
def rotation(width: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "_ _"]:
    """Return the fixed matrix R that rotates entries before quantisation: y = x R, x = y R^T.

    ``R = D (H (x) C) / sqrt(width)`` with width = 2^a m, m odd. ``H`` is Sylvester's Hadamard
    matrix with 2^a rows, ``H_ij = (-1)^(ones of i & j)``. ``C`` is the Hartley matrix with m rows,
    ``C_jk = cos t + sin t`` with t = 2 pi jk / m; ``C`` is 1 if the width is a power of two. ``H``
    and ``C`` are symmetric with orthogonal rows, so there is a rotation for every width. ``D`` is
    diagonal with the Rudin-Shapiro signs, ``D_ii = (-1)^(pairs of neighbouring ones in i)``.
    Without ``D``, a common offset of all channels, as keys often have, would end up in one channel.
    """
    odd = width // (width & -width)
    hadamard = torch.ones(1, 1, dtype=torch.float64)
    while hadamard.shape[0] * odd < width:
        hadamard = torch.cat(
            (torch.cat((hadamard, hadamard), 1), torch.cat((hadamard, -hadamard), 1))
        )
    steps = torch.arange(odd, dtype=torch.float64)
    angles = 2 * math.pi * (steps[:, None] * steps % odd) / odd
    matrix = torch.kron(hadamard, angles.cos() + angles.sin()) / math.sqrt(width)
    signs = [(-1.0) ** (index & index >> 1).bit_count() for index in range(width)]
    return (torch.tensor(signs, dtype=torch.float64)[:, None] * matrix).to(device, dtype)


def rotate(entries: Entries) -> Entries:
    """Return the entries times ``rotation``, in float64 if the device supports it."""
    exact = _exact(entries)
    return exact @ rotation(entries.shape[-1], exact.dtype, exact.device)


def rotate_back(entries: Entries) -> Entries:
    """Undo ``rotate``."""
    return entries @ rotation(entries.shape[-1], entries.dtype, entries.device).mT


def _exact(entries: Tensor) -> Tensor:
    """Return entries in float64 if the device supports it, so that codes are rounded correctly."""
    return entries.to(torch.float32 if entries.device.type == "mps" else torch.float64)


def _scales(most: Tensor, bits: int) -> Float[Tensor, "..."]:
    exact = most / (2 ** (bits - 1) - 1)
    scales = exact.float()
    # Rounded up, because a smaller scale would clip the largest number.
    above = torch.nextafter(scales, scales.new_full((), math.inf))
    return torch.where(scales < exact, above, scales)


def _round(exact: Tensor, scales: Tensor) -> Int8[Tensor, "..."]:
    # For zeros any scale is right, but zero cannot be a divisor.
    divisors = torch.where(scales > 0, scales, 1.0).to(exact.dtype)
    return (exact / divisors).round().to(torch.int8)
