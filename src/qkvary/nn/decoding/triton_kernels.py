"""Decoding attention in Triton: one pass over a run of keys, and the merge of the runs.

A program attends with the rows of one KV head, which are the queries of all heads that read it, to
one run of its keys. It reads them tile by tile, and each tile once for both products where the
value is the key. Knows pointers and sizes; which sizes suit a call is decided in
``triton_attention``, the only file that imports this one, since Triton may not be there.
"""

from subprocess import SubprocessError
from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

FAILURES = (triton.TritonError, SubprocessError)
"""What a kernel that cannot be built raises; a compiler that is called may fail too."""

INTERPRETED = bool(knobs.runtime.interpret)
"""Whether the kernels run in Triton's interpreter, which the environment says before the import."""

PRODUCTS = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    # The interpreter cannot multiply bfloat16.
    torch.bfloat16: tl.float32 if INTERPRETED else tl.bfloat16,
}
"""Types of the factors of both products, by the type of the queries."""

LOWEST = tl.constexpr(-1e38)
"""Where the highest score of a row begins: finite, so that seeing nothing is no special case."""


class Stored(NamedTuple):
    """Keys or values where they lie, [batch, kv_heads, tokens, channels]."""

    numbers: Tensor
    """Floats, or codes where there are scales."""
    strides: tuple[int, ...]
    """Of all four dimensions."""
    dim: tl.constexpr
    """Channels."""
    width: tl.constexpr
    """Channels, filled up to a power of two."""
    scales: Tensor | None
    """Factors of the codes, [batch, kv_heads, tokens, groups of channels]."""
    scale_strides: tuple[int, ...] | None
    """Of all four dimensions."""
    group: tl.constexpr
    """Channels that share a factor, a power of two."""


class Turning(NamedTuple):
    """Cosines and sines for keys that are stored un-rotated, [positions, 2, width]."""

    near: Tensor
    """Of the positions within a tile."""
    far: Tensor
    """Of the positions at which tiles begin."""
    half: tl.constexpr
    """Pairs of turned channels, which are the last ones."""


class Bias(NamedTuple):
    """Added to scaled scores, for powers of two, [batch, kv_heads, rows, tokens] in a row."""

    numbers: Tensor
    """float32."""
    keys: int
    """Of a row; some may come after the last that is seen."""


class Valid(NamedTuple):
    """Which keys are seen at all, [batch, tokens]."""

    marks: Tensor
    """False for padding."""
    strides: tuple[int, ...]
    """Of both dimensions."""


# Parameters have no types here: inside a kernel they are Triton's pointers, blocks and constants.
@triton.jit
@no_type_check
def read_tile(stored, batch, group, first, tokens, TILE: tl.constexpr):
    """The numbers of the tokens from ``first`` on, [TILE, width]; zeros beyond the last."""
    index, channel = tl.arange(0, TILE)[:, None], tl.arange(0, stored.width)[None, :]
    is_there = first + index < tokens
    strides = stored.strides
    place = stored.numbers + batch * strides[0] + group * strides[1] + first * strides[2]
    place += index * strides[2] + channel * strides[3]
    numbers = tl.load(place, mask=is_there & (channel < stored.dim), other=0)
    if stored.scales is not None:
        GROUPS: tl.constexpr = stored.width // stored.group
        of_group = tl.arange(0, GROUPS)[None, :]
        strides = stored.scale_strides
        place = stored.scales + batch * strides[0] + group * strides[1] + first * strides[2]
        place += index * strides[2] + of_group * strides[3]
        is_there &= of_group * stored.group < stored.dim
        scales = tl.load(place, mask=is_there, other=0).to(tl.float32)
        codes = tl.reshape(numbers.to(tl.float32), (TILE, GROUPS, stored.group))
        numbers = tl.reshape(codes * scales[:, :, None], (TILE, stored.width))
    return numbers


@triton.jit
@no_type_check
def read_queries(query, row, is_row, dim: tl.constexpr, width: tl.constexpr, half: tl.constexpr):
    """Queries and what they are a quarter of a turn further, [rows, width].

    There the first of a pair is what the second was, and the second minus the first. Channels that
    do not turn get any number, which will meet a sine of zero.
    """
    channel = tl.arange(0, width)[None, :]
    place, is_there = query + row[:, None] * dim, is_row[:, None] & (channel < dim)
    is_first = channel < dim - half
    partner = tl.where(is_first, channel + half, channel - half)
    asked = tl.load(place + channel, mask=is_there, other=0)
    across = tl.load(place + partner, mask=is_there, other=0).to(tl.float32)
    return asked, tl.where(is_first, across, -across)


@triton.jit
@no_type_check
def compare_turned(asked, across, keys, near, far, width: tl.constexpr, PRODUCTS: tl.constexpr):
    """Scores of keys that were stored un-rotated.

    The queries turn back by where the tile begins, the keys on by where they are in it. A turn of
    k is k times cosines and, a quarter further, k times sines; the quarter is left to the query.
    """
    channel = tl.arange(0, width)[None, :]
    cos, sin = tl.load(far + channel), tl.load(far + width + channel)
    along = (asked * cos + across * sin).to(PRODUCTS)
    across = (across * cos - asked * sin).to(PRODUCTS)
    near_cos, near_sin = near
    keys_along = tl.trans((keys * near_cos).to(PRODUCTS))
    keys_across = tl.trans((keys * near_sin).to(PRODUCTS))
    scores = tl.dot(along, keys_along, input_precision="ieee")
    return tl.dot(across, keys_across, scores, input_precision="ieee")


@triton.jit
@no_type_check
def see(valid, batch, token, tokens, last):
    """Which tokens a row sees, [rows, TILE]: there, no padding, and none after its last."""
    is_there = token < tokens
    if valid is not None:
        marks = valid.marks + batch * valid.strides[0] + token * valid.strides[1]
        is_there &= tl.load(marks, mask=is_there, other=0) != 0
    return is_there[None, :] & (token[None, :] <= last[:, None])


@triton.jit
@no_type_check
def add_bias(scores, bias, row, is_row, token, tokens):
    """Scores with what is added to them, where there is something."""
    if bias is not None:
        place = bias.numbers + row[:, None] * bias.keys + token[None, :]
        scores += tl.load(place, mask=is_row[:, None] & (token < tokens)[None, :], other=0)
    return scores


@triton.jit
@no_type_check
def read_near(near, TILE: tl.constexpr, width: tl.constexpr):
    """Cosines and sines of the positions within a tile."""
    place = near + tl.arange(0, TILE)[:, None] * (2 * width) + tl.arange(0, width)[None, :]
    return tl.load(place), tl.load(place + width)


@triton.jit(do_not_specialize=["start", "tokens"])
@no_type_check
def attend_run(
    query,
    key,
    value,
    valid,
    turning,
    bias,
    parts,
    sizes,
    scale,
    rows,
    queries,
    start,
    tokens,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    PRODUCTS: tl.constexpr,
):
    """Attend to one run of keys; grid [runs, kv_heads x blocks of rows, batch].

    Args:
        query: [batch, kv_heads, rows, dim] in a row.
        key: What is compared with the queries.
        value: What is mixed; ``None`` where that is the key.
        valid: Which keys are seen at all; ``None`` if all are.
        turning: How keys are turned before they are compared; ``None`` if they are not.
        bias: What is added to the scaled scores; ``None`` for none.
        parts: The mixtures, [batch, kv_heads, rows, runs, value dim] in a row.
        sizes: Logarithms, to base two, of the sums of their weights.
        scale: Factor of the scores, for powers of two.
        rows: Queries of the first head that reads a KV head, of the second, and so on.
        queries: Of each head; number i sees the first ``start + i + 1`` keys.
        start: See there.
        tokens: Number of keys.
        ROWS: Of a program.
        TILE: Keys read at a time.
        PRODUCTS: Type of the factors of both products; sums are float32.
    """
    blocks = tl.cdiv(rows, ROWS)
    run, runs, batch = tl.program_id(0), tl.num_programs(0), tl.program_id(2).to(tl.int64)
    group, groups = (tl.program_id(1) // blocks).to(tl.int64), tl.num_programs(1) // blocks
    row = tl.program_id(1) % blocks * ROWS + tl.arange(0, ROWS)
    is_row, last = row < rows, start + row % queries
    row += (batch * groups + group) * rows
    half: tl.constexpr = 0 if turning is None else turning.half
    asked, across = read_queries(query, row, is_row, key.dim, key.width, half)
    if turning is not None:
        near = read_near(turning.near, TILE, key.width)
    mixture: tl.constexpr = key if value is None else value
    most, total = tl.full((ROWS,), LOWEST, tl.float32), tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, mixture.width), tl.float32)
    length = tl.cdiv(tokens, TILE * runs) * TILE
    begin = run.to(tl.int64) * length
    for first in range(begin, tl.minimum(begin + length, tokens), TILE):
        keys = read_tile(key, batch, group, first, tokens, TILE).to(PRODUCTS)
        if turning is None:
            scores = tl.dot(asked.to(PRODUCTS), tl.trans(keys), input_precision="ieee")
        else:
            far = turning.far + first // TILE * (2 * key.width)
            scores = compare_turned(asked, across, keys, near, far, key.width, PRODUCTS)
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
        mixed = tl.dot(weights.to(PRODUCTS), values, mixed, input_precision="ieee")
        most = highest
    # A row that sees some key gives its highest score the weight 1.
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
    """Put the runs of a row together; grid [rows of all heads, blocks of channels].

    Args:
        parts: The mixture of each run, [rows, runs, DIM] in a row.
        sizes: Logarithms, to base two, of the sums of their weights.
        output: [rows, DIM] in a row.
        runs: How many.
        DIM: Channels.
        RUNS: How many, filled up to a power of two.
        CHANNELS: Of a program.
    """
    row, run = tl.program_id(0).to(tl.int64), tl.arange(0, RUNS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    size = tl.load(sizes + row * runs + run, mask=run < runs, other=-float("inf"))
    weights = tl.exp2(size - tl.max(size, 0))
    place = parts + (row * runs + run)[:, None] * DIM + channel[None, :]
    is_there = (run < runs)[:, None] & (channel < DIM)[None, :]
    mixed = tl.sum(tl.load(place, mask=is_there, other=0) * weights[:, None], 0)
    tl.store(output + row * DIM + channel, mixed / tl.sum(weights, 0), mask=channel < DIM)
