"""Computes decoding attention on GPUs with the kernels of ``triton_kernels``.

The keys of a KV head are divided into segments, which are called runs in the code, so that even a
few heads keep all multiprocessors busy. A program reads a segment tile by tile.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from qkvary.nn.decoding.problem import Decoding

try:
    from qkvary.nn.decoding import triton_kernels

    kernels: Any = triton_kernels
except ImportError:
    kernels = None

TYPES = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes that the kernels support."""

LEAST = 16
"""The smallest number of rows, keys and channels that matrix units can multiply."""
MOST_FEW = {torch.float32: 1, torch.float16: 0, torch.bfloat16: 0}
"""Maximum number of rows that a program computes without matrix units (measured on an H200)."""
MOST_ROWS, MOST_KEYS = 64, 256
"""Maximum number of rows and of keys per tile."""
TILE_BYTES = 1 << 15
"""Maximum number of bytes of a tile of keys or queries, the fastest of 27 sizes on an H200. If
tiles do not fit into shared memory, they are halved, and twice as many programs run."""
MOST_ROW_BYTES = 1 << 10
"""Maximum number of bytes of one key, value or query."""
LOG2_E = math.log2(math.e)
MERGED = 1 << 12
"""Number of values that a program of the merge reads."""
MOST_RUNS = 256
WARPS, STAGES = 4, 3
"""Number of warps per program, and number of tiles that are loaded in advance."""
PROGRAMS = 2
"""Number of programs per multiprocessor: some compute while others wait for memory."""
INTERPRETED_PROCESSORS = 2
_tile_bytes: dict[object, int] = {}
"""Bytes per tile for each kind of call for which ``TILE_BYTES`` did not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The partition of an attention call: keys in segments and tiles, query rows in blocks."""

    tile: int
    """Number of keys per tile."""
    runs: int
    """Number of segments of the keys, each with the same number of whole tiles."""
    block: int
    """Number of rows per program; fewer than ``LEAST`` are multiplied without matrix units."""
    blocks: int
    """Number of programs for the rows of a KV head."""
    warps: int
    """Number of warps per program."""


def is_interpreted() -> bool:
    """Return whether the kernels run in Triton's interpreter, which is slow and only for tests."""
    return kernels is not None and kernels.INTERPRETED


def supports(problem: Decoding) -> bool:
    """Return whether the kernels support these tensors, on a GPU or in the interpreter."""
    if kernels is None or problem.query.dtype not in TYPES:
        return False
    stored = (problem.key, problem.value)
    return _bytes_of_row(problem) <= MOST_ROW_BYTES and all(
        part.device.type == "cuda" or kernels.INTERPRETED for part in stored
    )


def kind_of(problem: Decoding) -> object:
    """Return a value that identifies the code and the shared memory that a call needs."""
    rows, dtype = problem.rows, problem.query.dtype
    return (
        problem.key.device,
        dtype,
        (problem.key.shape[3], problem.value.shape[3], problem.is_shared),
        (min(_fill(rows), MOST_ROWS), rows <= MOST_FEW[dtype]),
        (problem.valid is None, problem.bias is None),
    )


def attend_triton(problem: Decoding) -> Float[Tensor, "batch heads queries value_dim"]:
    """Attend to each segment of the keys and merge the results."""
    if kernels is None:
        raise RuntimeError("Triton is not installed")
    try:
        with torch.cuda.device_of(problem.query):
            return problem.unfold(_attend_in_tiles(problem))
    except kernels.FAILURES as error:
        raise RuntimeError(f"Triton cannot build its kernels: {error}") from error


def _attend_in_tiles(problem: Decoding) -> Float[Tensor, "batch kv_heads rows value_dim"]:
    """Attend with tiles that fit on the device; halve the tiles until Triton accepts them."""
    kind = kind_of(problem)
    while True:
        tile_bytes = min(TILE_BYTES, _tile_bytes.get(kind, TILE_BYTES))
        try:
            return _attend(problem, cut(problem, tile_bytes))
        except kernels.NoRoom:
            if tile_bytes // 2 < LEAST * _bytes_of_row(problem):
                raise
            _tile_bytes[kind] = tile_bytes // 2


def cut(problem: Decoding, tile_bytes: int) -> Cut:
    """Return how to cut a call for its device, into tiles of at most ``tile_bytes`` bytes."""
    batch, groups, keys, _ = problem.key.shape
    bytes_of_row = _bytes_of_row(problem)
    most = tile_bytes // bytes_of_row
    tile, block = min(most, MOST_KEYS), min(most, MOST_ROWS, _fill(problem.rows))
    if problem.rows <= MOST_FEW[problem.query.dtype]:
        block = 1 << (problem.rows - 1).bit_length()
    blocks = -(-problem.rows // block)
    tiles = -(-keys // tile)
    programs = PROGRAMS * (TILE_BYTES // tile_bytes) * _processors(problem.key.device)
    wanted = programs // (batch * groups * blocks)
    runs = min(tiles, MOST_RUNS, max(1, wanted))
    return Cut(
        tile=tile,
        # Runs have equal lengths, and none is empty.
        runs=-(-tiles // -(-tiles // runs)),
        block=block,
        blocks=blocks,
        warps=2 * WARPS if block * bytes_of_row >= tile_bytes else WARPS,
    )


def _bytes_of_row(problem: Decoding) -> int:
    """Return the number of bytes of a key, value or query, padded to the width of a tile."""
    dim = max(problem.key.shape[3], problem.value.shape[3])
    return _fill(dim) * problem.query.element_size()


def _attend(problem: Decoding, pieces: Cut) -> Float[Tensor, "batch kv_heads rows value_dim"]:
    query, key, value, valid = problem.query, problem.key, problem.value, problem.valid
    shape = (*key.shape[:2], problem.rows, pieces.runs)
    # If there is a single run, its part is the result and has the result's dtype.
    dtype = query.dtype if pieces.runs == 1 else torch.float32
    parts = query.new_empty(*shape, value.shape[3], dtype=dtype)
    sizes = query.new_empty(shape, dtype=torch.float32)
    bias = problem.folded_bias()
    if bias is not None:
        # The kernel computes powers of two.
        bias = kernels.Bias((bias.to(torch.float32) * LOG2_E).contiguous(), bias.shape[-1])
    kernels.attend_run[pieces.runs, shape[1] * pieces.blocks, shape[0]](
        problem.folded_query().contiguous(),
        _describe(key),
        None if problem.is_shared else _describe(value),
        None if valid is None else kernels.Valid(valid, valid.stride()),
        bias,
        parts,
        sizes,
        problem.scale * LOG2_E,
        problem.rows,
        query.shape[2],
        key.shape[2],
        ROWS=pieces.block,
        TILE=pieces.tile,
        PRODUCTS=kernels.PRODUCTS[query.dtype],
        FEW=pieces.block < LEAST,
        num_warps=pieces.warps,
        num_stages=STAGES,
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


def _describe(numbers: Tensor) -> object:
    """Return keys or values in the form that the kernels read."""
    constant, dim = kernels.tl.constexpr, numbers.shape[3]
    return kernels.Stored(numbers, numbers.stride(), constant(dim), constant(_fill(dim)))


@functools.cache
def _processors(device: torch.device) -> int:
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def _fill(number: int) -> int:
    return max(LEAST, 1 << (number - 1).bit_length())
