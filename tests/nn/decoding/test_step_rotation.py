"""A native step rotates stored keys at any position, as the network does."""

import copy

import pytest
import torch

from qkvary.arch.caches import CacheOptions
from qkvary.nn.cache import KVCache
from qkvary.nn.decoding.step import NativeStep
from tests.nn.decoding.cases import GATES, distance
from tests.nn.decoding.test_step import FLOAT32, make


@torch.no_grad()
def read_rotated(dtype: torch.dtype, rows: int) -> float:
    """Return the distance of a step that rotates 131 stored keys from that in double precision.

    The keys are more than the positions whose angles are in a table.
    """
    model = make("QKV@rotary", d_model=24, positions="none", dtype=dtype)
    object.__setattr__(model.config, "max_tokens", 140)
    exact = copy.deepcopy(model).double()
    options = CacheOptions(layout="sources", storage="preallocated")
    caches = [KVCache(one.config.layers, max_tokens=140, options=options) for one in (model, exact)]
    generator = torch.Generator().manual_seed(rows)
    for layers in zip(*(cache.layers for cache in caches), strict=True):
        stored = torch.randn(2, rows, 4, 131, 6, generator=generator).to(dtype)
        for layer, one in zip(layers, (model, exact), strict=True):
            key, value = stored.to(one.embedding.dtype)
            layer.append({"k": key, "v": value})
    tokens = torch.arange(rows)
    found = NativeStep(model, caches[0])(tokens, None)
    return distance(found, exact(tokens[:, None], cache=caches[1])[:, -1])


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_keys_are_rotated_when_they_are_read_at_any_position(dtype: torch.dtype, rows: int) -> None:
    assert read_rotated(dtype, rows) < (FLOAT32 if dtype == torch.float32 else GATES[dtype])
