"""Decoding attention in Triton: one pass over each segment of the keys, and the merge of results.

A program attends to one segment (run) of the keys of one KV head; its rows are queries of all heads
that share the KV head. It loads the keys tile by tile; if the value is the key, each tile is loaded
once for both matmuls. ``triton_attention`` chooses the sizes. Only that module imports this one,
because Triton may not be installed.
"""

from subprocess import SubprocessError
from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

FAILURES = (triton.TritonError, SubprocessError)
"""Errors of a kernel that cannot be built; the compiler that Triton calls may fail too."""

NoRoom = triton.OutOfResources
"""The error of a kernel whose tiles exceed the shared memory of the GPU."""

INTERPRETED = bool(knobs.runtime.interpret)
"""Whether the kernels run in Triton's interpreter; ``TRITON_INTERPRET=1`` before import sets it."""

PRODUCTS = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    # The interpreter cannot multiply bfloat16.
    torch.bfloat16: tl.float32 if INTERPRETED else tl.bfloat16,
}
"""The dtype of the inputs of both matmuls, by the dtype of the queries."""

LOWEST = tl.constexpr(-1e38)
"""The initial maximum of a row's scores: finite, so that rows without keys need no special case."""


class Stored(NamedTuple):
    """Keys or values in place, [batch, kv_heads, tokens, channels]."""

    numbers: Tensor
    strides: tuple[int, ...]
    dim: tl.constexpr
    """Number of channels."""
    width: tl.constexpr
    """Number of channels, padded to a power of two."""


class Bias(NamedTuple):
    """The bias of the scores times log2(e), float32, contiguous, [batch, kv_heads, rows, keys]."""

    numbers: Tensor
    keys: int
    """Number of keys per row."""


class Valid(NamedTuple):
    """A mask of the keys, [batch, tokens], False for padding."""

    marks: Tensor
    strides: tuple[int, ...]


# Parameters have no annotations here: inside a kernel they are Triton's pointers, blocks and
# constants.
@triton.jit
@no_type_check
def read_tile(stored, batch, group, first, tokens, TILE: tl.constexpr):
    """Load ``TILE`` tokens from ``first`` on, as [TILE, width]; rows after the last are zero."""
    index, channel = tl.arange(0, TILE)[:, None], tl.arange(0, stored.width)[None, :]
    strides = stored.strides
    place = stored.numbers + batch * strides[0] + group * strides[1] + first * strides[2]
    place += index * strides[2] + channel * strides[3]
    return tl.load(place, mask=(first + index < tokens) & (channel < stored.dim), other=0)


@triton.jit
@no_type_check
def see(valid, batch, token, tokens, last):
    """Return a mask, [rows, TILE]: each row sees the real tokens up to its entry in ``last``."""
    is_there = token < tokens
    if valid is not None:
        marks = valid.marks + batch * valid.strides[0] + token * valid.strides[1]
        is_there &= tl.load(marks, mask=is_there, other=0) != 0
    return is_there[None, :] & (token[None, :] <= last[:, None])


@triton.jit
@no_type_check
def add_bias(scores, bias, row, is_row, token, tokens):
    """Return the scores plus the bias, if there is a bias."""
    if bias is not None:
        place = bias.numbers + row[:, None] * bias.keys + token[None, :]
        scores += tl.load(place, mask=is_row[:, None] & (token < tokens)[None, :], other=0)
    return scores


@triton.jit
@no_type_check
def score(asked, keys, FEW: tl.constexpr):
    """Return the dot products of queries and keys, [rows, TILE]; ``FEW`` avoids matrix units."""
    if FEW:
        asked, keys = asked.to(tl.float32), keys.to(tl.float32)
        return tl.sum(asked[:, None, :] * keys[None, :, :], 2)
    return tl.dot(asked, tl.trans(keys), input_precision="ieee")


@triton.jit
@no_type_check
def mix(weights, values, mixed, FEW: tl.constexpr):
    """Return the mixture of the earlier values and the values of this tile, [rows, width]."""
    if FEW:
        return mixed + tl.sum(weights[:, :, None] * values.to(tl.float32)[None, :, :], 1)
    return tl.dot(weights.to(values.dtype), values, mixed, input_precision="ieee")


@triton.jit(do_not_specialize=["tokens"])
@no_type_check
def attend_run(
    query,
    key,
    value,
    valid,
    bias,
    parts,
    sizes,
    scale,
    rows,
    queries,
    tokens,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    PRODUCTS: tl.constexpr,
    FEW: tl.constexpr,
):
    """Attend to one segment (run) of the keys; grid [runs, kv_heads x blocks of rows, batch].

    Args:
        query: [batch, kv_heads, rows, dim], contiguous.
        key: The keys.
        value: The values; ``None`` if they are the keys.
        valid: The mask of the keys, or ``None``.
        bias: The bias of the scaled scores, or ``None``.
        parts: Output: the weighted mean of the values of each segment, [batch, kv_heads, rows,
            runs, value dim], contiguous.
        sizes: Output: for each weighted mean in ``parts``, the base-two logarithm of the sum of
            its weights.
        scale: The factor by which scores are multiplied, times log2(e), because the weights are
            computed as powers of two.
        rows: Number of queries that share a KV head. The queries of the first query head come
            first.
        queries: Queries per head; query i sees the first ``tokens - queries + i + 1`` keys.
        tokens: Number of keys.
        ROWS: Rows per program.
        TILE: Keys read at a time.
        PRODUCTS: The dtype of the inputs of both matmuls; sums are float32.
        FEW: Whether there are too few rows for matrix units.
    """
    blocks = tl.cdiv(rows, ROWS)
    run, runs, batch = tl.program_id(0), tl.num_programs(0), tl.program_id(2).to(tl.int64)
    group, groups = (tl.program_id(1) // blocks).to(tl.int64), tl.num_programs(1) // blocks
    row = tl.program_id(1) % blocks * ROWS + tl.arange(0, ROWS)
    is_row, last = row < rows, tokens - queries + row % queries
    row += (batch * groups + group) * rows
    read = tl.arange(0, key.width)[None, :]
    is_there = is_row[:, None] & (read < key.dim)
    asked = tl.load(query + row[:, None] * key.dim + read, mask=is_there, other=0).to(PRODUCTS)
    mixture: tl.constexpr = key if value is None else value
    most, total = tl.full((ROWS,), LOWEST, tl.float32), tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, mixture.width), tl.float32)
    length = tl.cdiv(tokens, TILE * runs) * TILE
    begin = run.to(tl.int64) * length
    for first in range(begin, tl.minimum(begin + length, tokens), TILE):
        keys = read_tile(key, batch, group, first, tokens, TILE).to(PRODUCTS)
        scores = score(asked, keys, FEW)
        token = first + tl.arange(0, TILE)
        scores = add_bias(scores * scale, bias, row, is_row, token, tokens)
        scores = tl.where(see(valid, batch, token, tokens, last), scores, -float("inf"))
        highest = tl.maximum(most, tl.max(scores, 1))
        weights = tl.exp2(scores - highest[:, None])
        kept = tl.exp2(most - highest)
        total = total * kept + tl.sum(weights, 1)
        values = keys
        if value is not None:
            values = read_tile(value, batch, group, first, tokens, TILE).to(PRODUCTS)
        mixed *= kept[:, None]
        mixed = mix(weights, values, mixed, FEW)
        most = highest
    # A row that sees a key gives its highest score the weight 1.
    total = tl.maximum(total, 1.0)
    part = row * runs + run
    channel = tl.arange(0, mixture.width)[None, :]
    place = parts + part[:, None] * mixture.dim + channel
    tl.store(place, mixed / total[:, None], mask=is_row[:, None] & (channel < mixture.dim))
    tl.store(sizes + part, most + tl.log2(total), mask=is_row)


@triton.jit(do_not_specialize=["runs"])
@no_type_check
def merge_runs(
    parts, sizes, output, runs, DIM: tl.constexpr, RUNS: tl.constexpr, CHANNELS: tl.constexpr
):
    """Merge the results of a query row for all segments; grid [rows of all heads, channel blocks].

    Args:
        parts: The weighted mean of the values of each segment, [rows, runs, DIM], contiguous.
        sizes: The base-two logarithm of the sum of weights of each weighted mean.
        output: [rows, DIM], contiguous.
        runs: Number of segments.
        DIM: Channels.
        RUNS: Number of segments, padded to a power of two.
        CHANNELS: Channels per program.
    """
    row, run = tl.program_id(0).to(tl.int64), tl.arange(0, RUNS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    size = tl.load(sizes + row * runs + run, mask=run < runs, other=-float("inf"))
    weights = tl.exp2(size - tl.max(size, 0))
    place = parts + (row * runs + run)[:, None] * DIM + channel[None, :]
    is_there = (run < runs)[:, None] & (channel < DIM)[None, :]
    mixed = tl.sum(tl.load(place, mask=is_there, other=0) * weights[:, None], 0)
    tl.store(output + row * DIM + channel, mixed / tl.sum(weights, 0), mask=channel < DIM)
