"""A step as one call takes shared rotary keys and the norm of what key and value share."""

import copy

import pytest
import torch

from qkvary.arch.caches import CacheLayout
from qkvary.arch.networks import BlockConfig
from qkvary.nn.decoding import step
from qkvary.nn.decoding.step import NativeStep
from qkvary.nn.quantized_weights import quantize_weights
from tests.nn.decoding.cases import GATES, distance
from tests.nn.decoding.test_step import (
    FLOAT32,
    NEW,
    PROMPT,
    compare,
    make,
    matrices_of,
    new_cache,
    texts,
)

ROTATED = [
    "Q-K=V@decoupled-4@kv-norm",
    "Q-MQA@decoupled-6@kv-norm",
    "Q=K=V@decoupled-4@kv-norm@t0.5",
    "I-K=V/2@decoupled-2@kv-norm",
    "Q[residual-gelu]-K=V/2@decoupled-18",
    "QKV@decoupled-4",
]
PORTABLE = "Q-GQA-2@decoupled-6@kv-norm"


@pytest.mark.parametrize("layout", ["rotated", "split"])
@pytest.mark.parametrize("label", ROTATED)
def test_rotary_keys_that_all_heads_share(label: str, layout: CacheLayout) -> None:
    model = make(label, positions="none", d_model=24, rope_base=50.0)
    mask = torch.ones(3, PROMPT + NEW, dtype=torch.bool)
    mask[1, :3] = False
    assert compare(model, layout, rows=3, mask=mask) < FLOAT32


@pytest.mark.parametrize("layout", ["sources", "rotated", "split"])
def test_the_norm_of_key_and_value(layout: CacheLayout) -> None:
    assert compare(make("Q-K=V@kv-norm"), layout, rows=2) < FLOAT32


def test_many_heads_take_more_than_a_vector() -> None:
    model = make(PORTABLE, positions="none", d_model=36, heads=18)
    assert compare(model, "rotated", rows=2) < FLOAT32


def test_what_is_left_to_the_network() -> None:
    """Rotary keys that would have to be rotated at read, and matrices of a latent."""
    for label, layout in (
        (PORTABLE, "sources"),
        ("Q-K=V@decoupled-4@latent-8", "rotated"),
    ):
        model = make(label, positions="none")
        assert not step.supports(model, new_cache(model, layout))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_no_further_than_the_network(dtype: torch.dtype) -> None:
    model = make(PORTABLE, d_model=32, dtype=dtype, positions="none")
    tokens = texts(2)
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(tokens)[:, PROMPT:]
        own = distance(model(tokens)[:, PROMPT:], expected)
    assert compare(model, "rotated", rows=2) < min(GATES[dtype], 4 * own)


@torch.no_grad()
def test_weights_of_8_bits() -> None:
    block = BlockConfig(d_ff=131, activation="swiglu", bias=False)
    plain = make(PORTABLE, d_model=72, block=block, positions="none")
    model, reference = quantize_weights(copy.deepcopy(plain)), plain.double()
    for own, kept in zip(matrices_of(reference), matrices_of(model), strict=True):
        own.copy_(kept)
    tokens, cache = texts(2), new_cache(model, "rotated")
    model(tokens[:, :PROMPT], cache=cache)
    assert step.supports(model, cache)
    found = NativeStep(model, cache)(tokens[:, PROMPT], None)
    assert distance(found, reference(tokens)[:, PROMPT]) < FLOAT32


@torch.no_grad()
def test_threads_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(PORTABLE, d_model=64, positions="none")
    found: list[torch.Tensor] = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        cache = new_cache(model, "rotated")
        model(texts(2)[:, :PROMPT], cache=cache)
        take = NativeStep(model, cache)
        found.append(torch.stack([take(texts(2)[:, PROMPT + i], None) for i in range(NEW)]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
