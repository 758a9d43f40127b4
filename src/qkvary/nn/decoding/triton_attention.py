"""Decoding attention on GPUs: how a call is cut for the kernels of ``triton_kernels``.

The keys of a KV head are cut into runs, so that a few heads keep all multiprocessors busy. Where
Triton is missing, which not every system has a build of, other kernels answer.
"""

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from qkvary.nn.decoding.problem import Decoding
from qkvary.nn.decoding.rotation import KeyRotation, angles, shift_queries

try:
    from qkvary.nn.decoding import triton_kernels

    kernels: Any = triton_kernels
except ImportError:
    kernels = None

SOURCES = (Path(__file__), Path(__file__).with_name("triton_kernels.py"))
TYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Of queries."""

LEAST = 16
"""Rows, keys and channels of the smallest product that matrix units take."""
MOST_ROWS, MOST_KEYS = 64, 128
"""Of a tile."""
TILE_BYTES = 1 << 14
"""Of keys or of queries, so that a multiprocessor reads several tiles ahead; half of it where keys
are turned, since cosines and sines stay in registers."""
MERGED = 1 << 12
"""Numbers that a program of the merge reads."""
MOST_RUNS = 256
PROGRAMS = 4
"""For each multiprocessor, so that some compute while others wait for memory."""
INTERPRETED_PROCESSORS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Sizes of the pieces of a call."""

    tokens: int
    """Keys that some query sees."""
    tile: int
    """Keys that are read at a time."""
    runs: int
    """Parts of the keys, each of as many whole tiles."""
    block: int
    """Rows of a program."""
    blocks: int
    """Programs for the rows of a KV head."""
    warps: int
    """Of a program."""


def is_interpreted() -> bool:
    """Return whether the kernels run in Triton's interpreter, for tests, and take their time."""
    return kernels is not None and kernels.INTERPRETED


def supports(problem: Decoding) -> bool:
    """Return whether the kernels support these tensors, on a GPU or in the interpreter."""
    if kernels is None or problem.query.dtype not in TYPES:
        return False
    stored = ((problem.key, problem.key_scales), (problem.value, problem.value_scales))
    return LEAST * _bytes_of_row(problem) <= _room(problem) and all(
        (numbers.device.type == "cuda" or kernels.INTERPRETED)
        and (scales is None or (numbers.shape[3] // scales.shape[3]).bit_count() == 1)
        for numbers, scales in stored
    )


def attend_triton(problem: Decoding) -> Float[Tensor, "batch heads queries value_dim"]:
    """Attend to runs of keys and merge them.

    Raises:
        RuntimeError: if Triton is not there, or cannot build its kernels for the device.
    """
    if kernels is None:
        raise RuntimeError("Triton is not installed")
    try:
        with torch.cuda.device_of(problem.query):
            return problem.unfold(_attend(problem, cut(problem)))
    except kernels.FAILURES as error:
        raise RuntimeError(f"Triton cannot build its kernels: {error}") from error


def cut(problem: Decoding) -> Cut:
    """Return what suits a call on its device."""
    batch, groups, keys, _ = problem.key.shape
    bytes_of_row, room = _bytes_of_row(problem), _room(problem)
    most = room // bytes_of_row
    tile, block = min(most, MOST_KEYS), min(most, MOST_ROWS, _fill(problem.rows))
    blocks = -(-problem.rows // block)
    tokens = min(keys, problem.start + problem.query.shape[2])
    tiles = -(-tokens // tile)
    wanted = PROGRAMS * _processors(problem.key.device) // (batch * groups * blocks)
    runs = min(tiles, MOST_RUNS, max(1, wanted))
    return Cut(
        tokens=tokens,
        tile=tile,
        # As many as have something to do when all are equally long.
        runs=-(-tiles // -(-tiles // runs)),
        block=block,
        blocks=blocks,
        warps=8 if block * bytes_of_row >= room else 4,
    )


def _bytes_of_row(problem: Decoding) -> int:
    """Of a key, a value or a query, filled up to what a tile holds of them."""
    dim = max(problem.key.shape[3], problem.value.shape[3])
    return _fill(dim) * problem.query.element_size()


def _room(problem: Decoding) -> int:
    return TILE_BYTES if problem.rotation is None else TILE_BYTES // 2


def _attend(problem: Decoding, pieces: Cut) -> Float[Tensor, "batch kv_heads rows value_dim"]:
    query, key, value, valid = problem.query, problem.key, problem.value, problem.valid
    shape = (*key.shape[:2], problem.rows, pieces.runs)
    # The part of a single run is the whole, and has its type.
    dtype = query.dtype if pieces.runs == 1 else torch.float32
    parts = query.new_empty(*shape, value.shape[3], dtype=dtype)
    sizes = query.new_empty(shape, dtype=torch.float32)
    kernels.attend_run[pieces.runs, shape[1] * pieces.blocks, shape[0]](
        _fold_turned(problem),
        _describe(key, problem.key_scales),
        None if problem.is_shared else _describe(value, problem.value_scales),
        None if valid is None else kernels.Valid(valid, valid.stride()),
        _turning(problem, pieces),
        _describe_bias(problem),
        parts,
        sizes,
        # Powers of two are what the kernel computes.
        problem.scale * math.log2(math.e),
        problem.rows,
        query.shape[2],
        problem.start,
        pieces.tokens,
        ROWS=pieces.block,
        TILE=pieces.tile,
        PRODUCTS=kernels.PRODUCTS[query.dtype],
        num_warps=pieces.warps,
    )
    return parts[:, :, :, 0] if pieces.runs == 1 else _merge(parts, sizes, query.dtype)


def _merge(
    parts: Float[Tensor, "batch kv_heads rows runs dim"],
    sizes: Float[Tensor, "batch kv_heads rows runs"],
    dtype: torch.dtype,
) -> Float[Tensor, "batch kv_heads rows dim"]:
    *rows, runs, dim = parts.shape
    merged = parts.new_empty(*rows, dim, dtype=dtype)
    filled = 1 << (runs - 1).bit_length()
    channels = min(_fill(dim), MERGED // filled)
    grid = (math.prod(rows), -(-dim // channels))
    kernels.merge_runs[grid](parts, sizes, merged, runs, DIM=dim, RUNS=filled, CHANNELS=channels)
    return merged


def _fold_turned(problem: Decoding) -> Float[Tensor, "batch kv_heads rows key_dim"]:
    query, rotation = problem.query, problem.rotation
    if rotation is not None:
        query = shift_queries(query, rotation)
    return query.reshape(*problem.key.shape[:2], problem.rows, -1).contiguous()


def _describe(numbers: Tensor, scales: Tensor | None) -> object:
    """Keys or values as the kernels know them."""
    constant = kernels.tl.constexpr
    dim = numbers.shape[3]
    group = dim if scales is None else dim // scales.shape[3]
    steps = None if scales is None else scales.stride()
    sizes = (constant(dim), constant(_fill(dim)))
    return kernels.Stored(numbers, numbers.stride(), *sizes, scales, steps, constant(group))


def _describe_bias(problem: Decoding) -> object | None:
    bias = problem.folded_bias()
    if bias is None:
        return None
    numbers = (bias.to(torch.float32) * math.log2(math.e)).contiguous()
    return kernels.Bias(numbers, bias.shape[-1])


def _turning(problem: Decoding, pieces: Cut) -> object | None:
    """Return the tables of a rotation, as long as the next power of two of tiles."""
    rotation, dim = problem.rotation, problem.key.shape[3]
    if rotation is None:
        return None
    tiles = 1 << (-(-pieces.tokens // pieces.tile) - 1).bit_length()
    near, far = (
        _table(rotation.dim, rotation.base, dim, count, step, problem.key.device)
        for count, step in ((pieces.tile, 1), (tiles, pieces.tile))
    )
    return kernels.Turning(near, far, kernels.tl.constexpr(rotation.dim // 2))


@functools.lru_cache(maxsize=32)
def _table(
    turned: int, base: float, dim: int, count: int, step: int, device: torch.device
) -> Float[Tensor, "positions 2 width"]:
    """Return cosines and sines of every ``step``-th position; 1 and 0 for unrotated channels."""
    positions = torch.arange(count, device=device) * step
    turns = angles(positions, KeyRotation(dim=turned, base=base)).repeat(1, 2)
    table = torch.zeros(count, 2, _fill(dim), device=device)
    table[:, 0] = 1.0
    table[:, 0, dim - turned : dim] = turns.cos()
    table[:, 1, dim - turned : dim] = turns.sin()
    return table


@functools.cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def _fill(number: int) -> int:
    """Return the next power of two that matrix units take."""
    return max(LEAST, 1 << (number - 1).bit_length())
