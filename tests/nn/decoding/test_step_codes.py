"""A step as one call over a cache of codes gives what the layers give, and stores the same."""

import copy
import itertools

import pytest
import torch
from torch import Tensor

from qkvary.arch.caches import CacheLayout, CacheOptions, CacheScales, CacheStorage
from qkvary.nn.cache import KVCache
from qkvary.nn.cache_codes import dequantize_tokens
from qkvary.nn.cache_quantized import QuantizedStore
from qkvary.nn.decoding import step
from qkvary.nn.decoding.step import NativeStep
from qkvary.nn.language_model import LanguageModel
from tests.nn.decoding.cases import distance
from tests.nn.decoding.test_build import NARROWER
from tests.nn.decoding.test_step import FLOAT32, LONGEST, NEW, PROMPT, make, texts
from tests.nn.decoding.test_step_networks import LATENT
from tests.pairwise import pairwise

PORTABLE = ["Q-GQA-2@decoupled-6@kv-norm", *LATENT]
HALF = 1e-2
"""The largest difference of a logit where queries become 8-bit integers."""


def new_cache(
    model: LanguageModel, storage: CacheStorage, layout: CacheLayout = "sources", **options: object
) -> KVCache:
    chosen = CacheOptions(layout=layout, storage=storage, **options)  # type: ignore[arg-type]
    return KVCache(model.config.layers, max_tokens=LONGEST, options=chosen)


def stores_of(cache: KVCache) -> list[QuantizedStore]:
    found = [store for layer in cache.layers for store in layer._stores.values()]
    assert all(isinstance(store, QuantizedStore) for store in found)
    return found  # pyright: ignore[reportReturnType]


def parts_of(cache: KVCache) -> list[Tensor]:
    """Codes, scales and what is kept as it is, of all layers."""
    parts: list[Tensor] = []
    for store in stores_of(cache):
        kept = (store._codes.read(), store._scales.read(), store._newest)
        parts += [torch.empty(0) if part is None else part for part in kept]
    return parts


@torch.no_grad()
def compare(model: LanguageModel, cache: KVCache, rows: int, mask: Tensor | None = None) -> float:
    """The largest distance of steps from the layers, each over what steps before have stored."""
    tokens = texts(rows)
    seen = None if mask is None else mask[:, :PROMPT]
    model(tokens[:, :PROMPT], cache=cache, attention_mask=seen)
    assert step.supports(model, cache)
    take, worst = NativeStep(model, cache), 0.0
    for place in range(PROMPT, PROMPT + NEW):
        so_far = None if mask is None else mask[:, : place + 1]
        other = copy.deepcopy(cache)
        new = tokens[:, place : place + 1]
        expected = model(new, cache=other, attention_mask=so_far)[:, -1]
        found = take(tokens[:, place], so_far)
        assert found.dtype == model.embedding.dtype
        same = [torch.equal(*two) for two in zip(parts_of(cache), parts_of(other), strict=True)]
        shapes = [[part.shape for part in parts_of(one)] for one in (cache, other)]
        assert shapes[0] == shapes[1]
        assert cache.nbytes == other.nbytes
        assert [one._runs for one in stores_of(cache)] == [one._runs for one in stores_of(other)]
        # The layers add up in another order, so that a number between two codes may be either.
        if all(same[0::3]):
            worst = max(worst, distance(found, expected))
    assert cache.length == PROMPT + NEW
    return worst


@pairwise(
    "label, layout, storage, scales, residual, width",
    itertools.product(
        ["QKV", "Q-K=V", "Q-GQA-2", "MQA", "QKV@rotary", "Q-K=V@rotary", *PORTABLE],
        ["sources", "split"],
        ["int8", "int4"],
        ["token", "channel"],
        [0, 1, 4],
        [5, 16, 64],
    ),
    ids=str,
)
def test_every_kind_of_codes(
    label: str,
    layout: CacheLayout,
    storage: CacheStorage,
    scales: CacheScales,
    residual: int,
    width: int,
) -> None:
    """Widths that vectors do not divide, groups that end within a head, blocks that fill up."""
    if "rotary" in label:
        width = 2 * width
    if label in PORTABLE:
        # The rotary keys are codes as well.
        layout, width = "rotated", 6
    positions = "none" if "rotary" in label else "learned"
    model = make(label, d_model=4 * width, positions=positions)
    options = {"scales": scales, "residual": residual, "group": 48, "block": 3}
    cache = new_cache(model, storage, layout, **options)
    assert compare(model, cache, rows=2) < FLOAT32


@torch.no_grad()
@pytest.mark.parametrize(("storage", "heads"), [("int8", 1), ("int4", 4), ("int8", 2)])
def test_thousands_of_codes_are_read_where_they_lie(storage: CacheStorage, heads: int) -> None:
    """Whole tiles with one scale a token, whose codes no copy makes numbers of."""
    options = CacheOptions(layout="sources", storage=storage, residual=3)
    for label in ("QKV", "QKV@rotary"):
        model = make(label, d_model=64, num_heads=heads, positions="none")
        cache = KVCache(model.config.layers, max_tokens=2100, options=options)
        generator = torch.Generator().manual_seed(5)
        shape = (1, heads, 2050, 64 // heads)
        for layer in cache.layers:
            layer.append({name: torch.randn(shape, generator=generator) for name in ("k", "v")})
        object.__setattr__(model.config, "max_tokens", 2100)
        other, take = copy.deepcopy(cache), NativeStep(model, cache)
        found = take(torch.tensor([3]), None)
        expected = model(torch.tensor([[3]]), cache=other)[:, -1]
        assert distance(found, expected) < FLOAT32


@torch.no_grad()
@pytest.mark.parametrize(
    ("label", "heads", "head_dim"),
    [
        ("QKV", 2, 64),
        ("GQA-2", 4, 64),
        ("GQA-2", 6, 128),
        ("GQA-2", 8, 64),
        ("Q-K=V@decoupled-16@kv-norm", 2, 64),
        ("QKV", 2, 32),
    ],
)
def test_half_precision_multiplies_codes_as_integers(label: str, heads: int, head_dim: int) -> None:
    """Nearer to the same codes in double precision than half precision could be."""
    model = make(label, d_model=heads * head_dim, num_heads=heads, positions="none").half()
    object.__setattr__(model.config, "max_tokens", 2100)
    options = CacheOptions(layout="rotated", storage="int4", residual=3)
    cache = KVCache(model.config.layers, max_tokens=2100, options=options)
    exact = KVCache(model.config.layers, max_tokens=2100, options=CacheOptions(layout="rotated"))
    model(torch.tensor([[3]]), cache=exact)
    shapes = {name: part.shape for name, part in exact.layers[0].read().items()}
    exact.clear()
    generator = torch.Generator().manual_seed(5)
    for layer, other in zip(cache.layers, exact.layers, strict=True):
        drawn = {
            name: torch.randn(1, groups, 2050, width, generator=generator).half()
            for name, (_, groups, _, width) in shapes.items()
        }
        layer.append(drawn)
        decoded: dict[str, Tensor] = {}
        for name, part in drawn.items():
            own = layer._stores[name]
            assert isinstance(own, QuantizedStore)
            codes, scales, newest = own._codes.read(), own._scales.read(), own._newest
            assert codes is not None
            assert scales is not None
            assert newest is not None
            numbers = torch.empty(1, part.shape[1], 2047, part.shape[3], dtype=torch.float64)
            dequantize_tokens(codes, scales.double(), 4, 64, numbers)
            decoded[name] = torch.cat((numbers, newest.double()), dim=2)
        other.append(decoded)
    found = NativeStep(model, cache)(torch.tensor([3]), None)
    expected = model.double()(torch.tensor([[3]]), cache=exact)[:, -1]
    assert distance(found, expected) < HALF


@pytest.mark.compile
@pytest.mark.usefixtures("narrower")
@pytest.mark.parametrize("flag", NARROWER)
@pytest.mark.parametrize(("heads", "head_dim"), [(2, 64), (6, 128)])
def test_narrower_vectors_multiply_codes_as_integers(heads: int, head_dim: int) -> None:
    """Processors without the widest vectors run this code."""
    test_half_precision_multiplies_codes_as_integers("GQA-2", heads, head_dim)


@torch.no_grad()
def test_numbers_without_a_scale_are_refused_and_change_nothing() -> None:
    model = make("QKV", d_model=64)
    cache = new_cache(model, "int8")
    tokens = texts(1)
    model(tokens[:, :PROMPT], cache=cache)
    before = copy.deepcopy(parts_of(cache))
    model.stack.blocks[1].attention.projections["v"].weight[3] = 2.0**122
    with pytest.raises(ValueError, match="expected finite entries in a quantised cache"):
        NativeStep(model, cache)(tokens[:, PROMPT], None)
    assert cache.length == PROMPT
    assert all(torch.equal(*two) for two in zip(parts_of(cache), before, strict=True))
    with pytest.raises(IndexError, match="expected tokens from 0 to"):
        NativeStep(model, cache)(torch.tensor([-1]), None)
    assert cache.length == PROMPT


@torch.no_grad()
def test_caches_of_codes_that_a_step_does_not_take() -> None:
    model = make("QKV", d_model=64)
    for storage, options in (("int3", {}), ("int8", {"rotate": True})):
        assert not step.supports(model, new_cache(model, storage, **options))  # type: ignore[arg-type]
    grows = KVCache(model.config.layers, options=CacheOptions(storage="int8"))
    assert not step.supports(model, grows)
    # A crop into a block leaves one that no step finishes.
    cache = new_cache(model, "int8", scales="channel", block=4)
    tokens = texts(1)
    model(tokens, cache=cache)
    take = NativeStep(model, cache)
    cache.crop(PROMPT + 1)
    with pytest.raises(ValueError, match="expected unrotated entries in whole blocks"):
        take(tokens[:, PROMPT + 1], None)
    assert cache.length == PROMPT + 1
    cache.crop(4)
    take(tokens[:, 4], None)
    assert cache.length == PROMPT
