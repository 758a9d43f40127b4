"""The native kernel of ``native/attention.cpp``, and the arguments of the library.

The kernel reads each tile of keys once for both matmuls, in place, with any strides between tokens,
heads and batch rows. The channels of a token must be contiguous. Only the native step (``step``)
reads codes and un-rotated keys.
"""

import ctypes
import functools
import math
import struct
from collections.abc import Callable
from itertools import repeat
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.sharing import IDENTITY, KEY_ROPE, QUERY_ROPE, Source
from qkvary.nn.cache_quantized import ClaimedCodes
from qkvary.nn.decoding import build
from qkvary.nn.decoding.problem import Decoding
from qkvary.nn.layout import rotary_angles

_FOLDER = Path(__file__).with_name("native")
SOURCES = (_FOLDER / "step.cpp", _FOLDER / "attention.cpp", *sorted(_FOLDER.glob("*.h")))
STORAGE = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The native library's number for each dtype."""
CODES = {8: 3, 4: 4}
"""The native library's number for a quantised cache, by the number of bits of a code."""
LOG2_E = math.log2(math.e)
"""log2(e). Scores are multiplied by it, because the kernel computes powers of two."""
PERIOD = 64
"""Number of positions in the first rotation table; the second has multiples of this number."""
WIDEST_VECTOR = 16
"""Number of floats in the widest vector register; rows of tables are padded to a multiple of it."""

_int64, _pointer = ctypes.c_int64, ctypes.c_void_p
_PLAIN = (0,) * 11
"""Values of the code fields of ``Stored`` for a tensor that is not quantised."""
_UNROTATED = (0,) * 6
"""Values of the rotation fields of ``Call`` if the kernel does not rotate keys."""


class Stored(ctypes.Structure):
    """One stored tensor, field by field as in ``attention.cpp``."""

    _fields_ = (
        ("data", _pointer),
        *zip(("batch_stride", "head_stride", "token_stride", "dim"), repeat(_int64)),
        ("scales", _pointer),
        *zip(("scale_batch_stride", "scale_head_stride", "scale_token_stride"), repeat(_int64)),
        *zip(("scale_groups", "group", "block"), repeat(_int64)),
        ("newest", _pointer),
        *zip(("newest_batch_stride", "newest_head_stride", "newest_token_stride"), repeat(_int64)),
    )


class Call(ctypes.Structure):
    """The arguments of the kernel for attention, field by field as in ``attention.cpp``."""

    _fields_ = (
        *zip(("query", "output", "valid"), repeat(_pointer)),
        ("valid_stride", _int64),
        *zip(("key", "value"), repeat(Stored)),
        *zip(
            ("shared", "storage", "batch", "groups", "rows", "queries", "tokens", "start"),
            repeat(_int64),
        ),
        *zip(("near_cos", "near_sin", "far_cos", "far_sin"), repeat(_pointer)),
        *zip(("half", "table_stride", "threads", "narrow"), repeat(_int64)),
        ("bias", _pointer),
        *zip(("rounded", "coded", "plain"), repeat(_int64)),
        ("scale", ctypes.c_double),
    )


PROJECTED: tuple[Source, ...] = ("q", "k", "v", QUERY_ROPE, KEY_ROPE, IDENTITY)
"""The sources of a layer, in the order of the native library."""


class Matrix(ctypes.Structure):
    """A weight matrix with its bias. The weights are numbers, or codes with scales."""

    _fields_ = (
        *zip(("weight", "bias", "scales"), repeat(_pointer)),
        *zip(("width", "inner"), repeat(_int64)),
    )


class Norm(ctypes.Structure):
    """A normalisation layer. The library applies it to each row."""

    _fields_ = (
        *zip(("weight", "bias"), repeat(_pointer)),
        ("kind", _int64),
        ("epsilon", ctypes.c_double),
    )


class Projected(ctypes.Structure):
    """A projection of the input by one matrix, or by the two matrices of a low-rank projection."""

    _fields_ = (("down", Matrix), ("weight", Matrix))


class Sums(ctypes.Structure):
    """The running sums that are the state of linear attention.

    The structure points to the sums before a token and to those after it (``_after``).
    """

    _fields_ = (
        *zip(("values", "keys", "values_after", "keys_after", "decay"), repeat(_pointer)),
        *zip(("decay_is_learned", "decays_keys", "features"), repeat(_int64)),
        ("scale", ctypes.c_double),
    )


class Layer(ctypes.Structure):
    """One layer of attention, and the feed-forward network after it."""

    _fields_ = (
        *zip(("attention_norm", "feed_forward_norm"), repeat(Norm)),
        ("sources", Projected * len(PROJECTED)),
        *zip(("query", "key", "value", "residual"), repeat(_int64)),
        *zip(("out", "up", "gate", "down", "latent_key", "latent_value"), repeat(Matrix)),
        *zip(("activation", "post", "queries", "pairs"), repeat(_int64)),
        *zip(("cos", "sin"), repeat(_pointer)),
        *zip(
            ("turns_key", "turns_value", "turns_back", "turns_by_index", "reads_memory"),
            repeat(_int64),
        ),
        *zip(("key_norm", "query_norm"), repeat(Norm)),
        *zip(("norms_heads", "norms_value"), repeat(_int64)),
        ("rope", Stored),
        ("closing", _int64),
        ("sums", Sums),
        ("attention", Call),
    )


class Step(ctypes.Structure):
    """The arguments of a native step: a network, and one new token for each row."""

    _fields_ = (
        ("layers", ctypes.POINTER(Layer)),
        *zip(("num_layers", "rows", "width", "storage", "threads", "bytes"), repeat(_int64)),
        ("embedding", Matrix),
        ("embedding_scale", ctypes.c_double),
        *zip(("positions", "tokens", "position"), repeat(_pointer)),
        ("index", _int64),
        ("final_norm", Norm),
        ("head", Matrix),
        ("logits", _pointer),
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the library, which is built on first use; None if it cannot be built or used."""
    loaded = build.load(SOURCES)
    if loaded is None:
        return None
    loaded.qkvary_reach.restype, loaded.qkvary_reach.argtypes = _int64, (_int64,)
    loaded.qkvary_pin_reach.restype, loaded.qkvary_pin_reach.argtypes = None, (_int64,)
    for function in (loaded.qkvary_decode, loaded.qkvary_step):
        function.restype, function.argtypes = _int64, (_pointer,)
    for structure in (Call, Layer, Step):
        size = getattr(loaded, f"qkvary_{structure.__name__.lower()}_size")
        size.restype = _int64
        if size() != ctypes.sizeof(structure):
            return None
    return loaded


def notice() -> str | None:
    """Return a notice for users if the kernels must first be built (this is slow), or None."""
    if library.cache_info().currsize or not build.will_build(SOURCES):
        return None
    return "building the native kernels, once for this machine"


def supports(problem: Decoding) -> bool:
    """Return whether the kernel can read these tensors, and can be built on this machine."""
    query, key, value = problem.query, problem.key, problem.value
    return (
        query.is_cpu
        and key.is_cpu
        and value.is_cpu
        and key.dtype in STORAGE
        and min(key.shape[3], value.shape[3]) > 0
        and library() is not None
    )


def attend_native(problem: Decoding) -> Float[Tensor, "batch heads queries value_dim"]:
    """Return the output of the native kernel. The kernel uses as many threads as torch."""
    loaded = library()
    if loaded is None:
        raise RuntimeError("the native kernel cannot be built here")
    query = problem.query
    dtype, shape = query.dtype, query.shape
    if query.dtype not in (torch.float32, torch.bfloat16):
        query = query.float()
    if not query.is_contiguous():
        query = query.contiguous()
    width = problem.value.shape[3]
    output = torch.empty_like(query) if width == shape[3] else query.new_empty(*shape[:3], width)
    # Tensors whose addresses are in the call must outlive it.
    call, _kept = describe(problem, query, output)
    if loaded.qkvary_decode(call):
        raise MemoryError("not enough memory for the partial results of decoding attention")
    return output if output.dtype == dtype else output.to(dtype)


def describe(problem: Decoding, query: Tensor, output: Tensor) -> tuple[bytes, list[Tensor]]:
    """Return a supported call in the form of the library, and the copies to which it points.

    All fields are packed at once, because reading the cache evicts Python's data from the
    processor's caches. Setting the fields one by one would add a tenth to the time of the call.
    """
    batch, groups, tokens, _ = problem.key.shape
    shared = problem.is_shared
    kept: list[Tensor] = []
    key = _store(problem.key, kept)
    value = key if shared else _store(problem.value, kept)
    valid = problem.valid
    if valid is not None and valid.stride(-1) != 1:
        valid = valid.contiguous()
        kept.append(valid)
    bias = problem.bias
    if bias is not None:
        bias = (bias.to(torch.float32) * LOG2_E).contiguous()
        kept.append(bias)
    return _packer()(
        query.data_ptr(),
        output.data_ptr(),
        0 if valid is None else valid.data_ptr(),
        0 if valid is None else valid.stride(0),
        *key,
        *value,
        shared,
        STORAGE[problem.key.dtype],
        batch,
        groups,
        problem.rows,
        query.shape[2],
        tokens,
        problem.start,
        *_UNROTATED,
        torch.get_num_threads(),
        query.dtype == torch.bfloat16,
        0 if bias is None else bias.data_ptr(),
        query.dtype == torch.bfloat16,
        tokens,
        0,
        problem.scale * LOG2_E,
    ), kept


def rotate_when_read(call: Call, config: AttentionConfig, tokens: int) -> tuple[Tensor, ...]:
    """Make the kernel rotate keys when it reads them.

    Return the tables, which the caller must keep in memory.
    """
    tables = rotation_tables(config, tokens)
    call.near_cos, call.near_sin, call.far_cos, call.far_sin = (one.data_ptr() for one in tables)
    call.half, call.table_stride = config.rotated_channels // 2, tables[0].shape[1]
    return tables


@functools.lru_cache(maxsize=16)
def rotation_tables(config: AttentionConfig, tokens: int) -> tuple[Tensor, ...]:
    """Return cosines and sines for positions 0 to 63, then for the multiples of 64.

    With j = 64 b + r, an un-rotated key k_j and a query q that is rotated by its own position,
    q^T R(j) k_j = (R(-64 b) q)^T R(r) k_j. So the kernel rotates the query once for 64 keys, and
    rotates the keys with one small table that stays in the first-level cache. Each score involves
    both tables, so only the table for positions 0 to 63 includes the factor of a scaled rotation.
    Each table has a column per rotated pair of channels, then columns of zeros as padding.
    """
    pairs, scaling = config.rotated_channels // 2, config.position.scaling
    width = math.ceil(pairs / WIDEST_VECTOR) * WIDEST_VECTOR
    # Powers of two, so that a growing cache does not need a table for every length.
    periods = 1 << (-(-tokens // PERIOD) - 1).bit_length()
    tables = [torch.zeros(2, rows, width, dtype=torch.float32) for rows in (PERIOD, periods)]
    for table, step in zip(tables, (1, PERIOD), strict=True):
        angles = rotary_angles(torch.arange(table.shape[1]) * step, config, tokens)
        table[0, :, :pairs], table[1, :, :pairs] = angles.cos(), angles.sin()
    near, far = tables
    return *(near if scaling is None else near * scaling.attention_factor), *far


def point(stored: Stored, entries: Tensor) -> None:
    """Set the fields of ``stored`` to the memory of ``entries``."""
    stored.data, stored.dim = entries.data_ptr(), entries.shape[-1]
    stored.batch_stride, stored.head_stride, stored.token_stride, _ = entries.stride()


def cover(call: Call, rows: int, tokens: int, valid: Tensor | None) -> None:
    """Let one query per row attend to the first ``tokens`` tokens that ``valid`` does not mask."""
    call.batch, call.tokens, call.start = rows, tokens, tokens - 1
    call.valid = None if valid is None else valid.data_ptr()
    call.valid_stride = 0 if valid is None else valid.stride(0)


def point_codes(stored: Stored, claimed: ClaimedCodes) -> None:
    """Set the fields of ``stored`` to the memory of codes and of the unquantised tokens."""
    codes, scales, newest = claimed.codes, claimed.scales, claimed.newest
    stored.data, stored.dim = codes.data_ptr(), newest.shape[3]
    stored.batch_stride, stored.head_stride, stored.token_stride, _ = codes.stride()
    stored.scales, stored.scale_groups = scales.data_ptr(), scales.shape[3]
    batch, head, token, _ = scales.stride()
    stored.scale_batch_stride, stored.scale_head_stride = batch, head
    stored.scale_token_stride = token
    stored.group, stored.block = claimed.group, claimed.block
    batch, head, token, _ = newest.stride()
    stored.newest_batch_stride, stored.newest_head_stride = batch, head
    stored.newest_token_stride = token
    # The tokens that are quantised now come before the first one that stays unquantised.
    stored.newest = newest.data_ptr() + claimed.closing * token * newest.element_size()


def _store(stored: Tensor, kept: list[Tensor]) -> tuple[int, ...]:
    """Return the fields of a stored tensor; a copy, if needed, is added to ``kept``."""
    strides = stored.stride()
    if strides[3] != 1:
        stored = stored.contiguous()
        kept.append(stored)
        strides = stored.stride()
    return (stored.data_ptr(), *strides[:3], stored.shape[3], *_PLAIN)


@functools.cache
def _packer() -> Callable[..., bytes]:
    """Return the function that packs the fields of a ``Call``."""
    spelled: dict[object, str] = {_pointer: "P", _int64: "q", ctypes.c_double: "d"}
    spelled[Stored] = "".join(spelled[field[1]] for field in Stored._fields_)
    return struct.Struct("".join(spelled[field[1]] for field in Call._fields_)).pack
