"""A step as one call over more stored tokens than fit a tile, a block or a table of angles."""

import copy

import pytest
import torch

from qkvary.arch.caches import CacheOptions, CacheStorage
from qkvary.nn.cache import KVCache
from qkvary.nn.decoding.step import NativeStep
from tests.nn.decoding.cases import GATES, distance
from tests.nn.decoding.test_step import FLOAT32, make


@torch.no_grad()
@pytest.mark.parametrize(
    ("storage", "dtype", "width"),
    [
        ("preallocated", torch.float32, 72),
        ("preallocated", torch.bfloat16, 64),
        ("int8", torch.float32, 64),
        ("int8", torch.bfloat16, 72),
    ],
)
def test_thousands_of_latents(storage: CacheStorage, dtype: torch.dtype, width: int) -> None:
    """Whole tiles, several blocks of tokens, and more rotary keys than are compared at once."""
    label = f"Q-GQA-2@decoupled-6@latent-{width}@kv-norm"
    model = make(label, positions="none", d_model=64, num_heads=8, dtype=dtype)
    object.__setattr__(model.config, "max_tokens", 2100)
    options = CacheOptions(layout="rotated", storage=storage)
    cache = KVCache(model.config.layers, max_tokens=2100, options=options)
    generator = torch.Generator().manual_seed(5)
    for layer in cache.layers:
        parts = {"key": width, "k_rope": 6}
        drawn = {n: torch.randn(2, 1, 2050, w, generator=generator) for n, w in parts.items()}
        layer.append({name: part.to(dtype) for name, part in drawn.items()})
    other = copy.deepcopy(cache)
    wide = KVCache(model.config.layers, options=CacheOptions(layout="rotated"))
    for layer, kept in zip(wide.layers, copy.deepcopy(cache).layers, strict=True):
        layer.append({name: part.double() for name, part in kept.read().items()})
    tokens = torch.tensor([3, 8])
    found = NativeStep(model, cache)(tokens, None)
    own = model(tokens[:, None], cache=other)[:, -1]
    if dtype == torch.float32:
        assert distance(found, own) < FLOAT32
    else:
        exact = model.double()(tokens[:, None], cache=wide)[:, -1]
        assert distance(found, exact) < min(GATES[dtype], 4 * distance(own, exact))


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
