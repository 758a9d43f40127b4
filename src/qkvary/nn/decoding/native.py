"""The native kernel: what ``native/attention.cpp`` computes, over tensors where they lie.

Reads each tile of the keys once for both products, whatever the strides between tokens, heads and
rows of the batch. Channels must be next to each other.
"""

import ctypes
import functools
import math
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from qkvary.nn.decoding import build
from qkvary.nn.decoding.build import load
from qkvary.nn.decoding.problem import Decoding
from qkvary.nn.decoding.rotation import PERIOD, KeyRotation, far_table, near_table, turn_back

SOURCES = tuple(
    Path(__file__).with_name("native") / name
    for name in (
        "step.cpp",
        "attention.cpp",
        "products.h",
        "tiles.h",
        "stored.h",
        "ahead.h",
        "team.h",
        "vectors.h",
    )
)
STORAGE = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}
LOG2_E = math.log2(math.e)
"""Powers of two are what the kernel computes."""
WIDEST_VECTOR = 16
"""Floats; tables are filled up to a multiple of it."""

_int64, _pointer = ctypes.c_int64, ctypes.c_void_p


class Stored(ctypes.Structure):
    """One stored tensor, field by field as in ``attention.cpp``."""

    _fields_ = (
        ("data", _pointer),
        ("batch_stride", _int64),
        ("head_stride", _int64),
        ("token_stride", _int64),
        ("dim", _int64),
        ("scales", _pointer),
        ("scale_batch_stride", _int64),
        ("scale_head_stride", _int64),
        ("scale_token_stride", _int64),
        ("scale_groups", _int64),
    )


class Call(ctypes.Structure):
    """What is asked of the kernel for attention, field by field as in ``attention.cpp``."""

    _fields_ = (
        ("query", _pointer),
        ("output", _pointer),
        ("valid", _pointer),
        ("valid_stride", _int64),
        ("key", Stored),
        ("value", Stored),
        ("shared", _int64),
        ("storage", _int64),
        ("batch", _int64),
        ("groups", _int64),
        ("rows", _int64),
        ("queries", _int64),
        ("tokens", _int64),
        ("start", _int64),
        ("near_cos", _pointer),
        ("near_sin", _pointer),
        ("far_cos", _pointer),
        ("far_sin", _pointer),
        ("half", _int64),
        ("table_stride", _int64),
        ("threads", _int64),
        ("narrow", _int64),
        ("scale", ctypes.c_double),
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """The kernel, built at the first call on a machine; ``None`` where that cannot be."""
    loaded = load(SOURCES)
    if loaded is None:
        return None
    loaded.qkvary_call_size.restype = _int64
    for name in ("step", "layer"):
        getattr(loaded, f"qkvary_{name}_size").restype = _int64
    for name in ("decode", "step"):
        function = getattr(loaded, f"qkvary_{name}")
        function.restype, function.argtypes = _int64, (_pointer,)
    return loaded if loaded.qkvary_call_size() == ctypes.sizeof(Call) else None


def will_build() -> bool:
    """Whether the first use has to build the kernels, which takes a while."""
    return build.will_build(SOURCES)


def takes(problem: Decoding) -> bool:
    """Whether the kernel reads these tensors, wherever it can be built."""
    tensors = (problem.query, problem.key, problem.value)
    return (
        all(tensor.device.type == "cpu" for tensor in tensors)
        and problem.key.dtype in STORAGE
        and problem.value.dtype == problem.key.dtype
        and problem.query.dtype != torch.float64
    )


def attend_native(problem: Decoding) -> Float[Tensor, "batch heads queries value_dim"]:
    """Attend with as many threads as torch uses.

    Raises:
        RuntimeError: if the kernel is not there.
        MemoryError: if there is no room for its partial results.
    """
    loaded = library()
    if loaded is None:
        raise RuntimeError("the native kernel cannot be built here")
    call, tensors = _describe(problem)
    if loaded.qkvary_decode(ctypes.byref(call)):
        raise MemoryError("no room for the partial results of decoding attention")
    return tensors[0].view(*problem.query.shape[:3], -1).to(problem.query.dtype)


def _describe(problem: Decoding) -> tuple[Call, list[Tensor]]:
    """The call and everything it points to, the output first."""
    batch, groups, tokens, _ = problem.key.shape
    query, rotation = problem.query, problem.rotation
    if rotation is not None:
        query = turn_back(query.float(), rotation)
    query = query.float().contiguous()
    shape = (batch, groups, problem.rows, problem.value.shape[-1])
    output = torch.empty(shape, dtype=torch.float32)
    key, kept = _store(problem.key, problem.key_scales)
    value, more = _store(problem.value, problem.value_scales)
    shared = problem.is_shared
    call = Call(
        query=query.data_ptr(),
        output=output.data_ptr(),
        key=key,
        value=key if shared else value,
        shared=shared,
        storage=STORAGE[problem.key.dtype],
        batch=batch,
        groups=groups,
        rows=problem.rows,
        queries=query.shape[2],
        tokens=tokens,
        start=problem.start,
        threads=torch.get_num_threads(),
        narrow=problem.query.dtype == torch.bfloat16 and rotation is None,
        scale=problem.scale * LOG2_E,
    )
    tensors = [output, query, *kept, *more]
    if problem.valid is not None:
        valid = problem.valid if problem.valid.stride(-1) == 1 else problem.valid.contiguous()
        call.valid, call.valid_stride = valid.data_ptr(), valid.stride(0)
        tensors.append(valid)
    if rotation is not None:
        tensors += describe_rotation(call, rotation, tokens)
    return call, tensors


def describe_rotation(call: Call, rotation: KeyRotation, tokens: int) -> list[Tensor]:
    """Let a call turn its keys when it reads them; returns the tables that it points to.

    Args:
        call: Any call over at most so many tokens.
        rotation: Of the keys.
        tokens: How far the tables go.
    """
    width = math.ceil(rotation.dim / 2 / WIDEST_VECTOR) * WIDEST_VECTOR
    # Powers of two, so that a growing cache does not make a table for every length.
    periods = 1 << (-(-tokens // PERIOD) - 1).bit_length()
    near = near_table(rotation.dim, rotation.base, width)
    far = far_table(rotation.dim, rotation.base, width, periods)
    call.near_cos, call.near_sin = (table.data_ptr() for table in near)
    call.far_cos, call.far_sin = (table.data_ptr() for table in far)
    call.half, call.table_stride = rotation.dim // 2, width
    return [*near, *far]


def point(stored: Stored, entries: Tensor) -> None:
    """Let a call read entries where they lie, channels next to each other."""
    stored.data, stored.dim = entries.data_ptr(), entries.shape[-1]
    stored.batch_stride, stored.head_stride, stored.token_stride, _ = entries.stride()


def _store(stored: Tensor, scales: Tensor | None) -> tuple[Stored, list[Tensor]]:
    if stored.stride(-1) != 1:
        stored = stored.contiguous()
    described = Stored()
    point(described, stored)
    if scales is None:
        return described, [stored]
    scales = scales.to(torch.float32)
    if scales.stride(-1) != 1:
        scales = scales.contiguous()
    described.scales = scales.data_ptr()
    described.scale_batch_stride = scales.stride(0)
    described.scale_head_stride = scales.stride(1)
    described.scale_token_stride = scales.stride(2)
    described.scale_groups = scales.shape[-1]
    return described, [stored, scales]
