"""Cache bytes against the papers' table."""

import dataclasses

import pytest

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.blocks import ProjectedAttention
from qkvary.arch.labels import parse_variant
from qkvary.arch.models import as_model
from qkvary.arch.named_networks import gpt_300m
from qkvary.costs.cache import (
    cache_bytes_per_token,
    growth_bytes,
    layer_cache_bytes,
    layer_state_bytes,
    model_cache_bytes,
    model_state_bytes,
)
from qkvary.costs.replicas import device_cache_bytes


@pytest.mark.parametrize(
    ("label", "published"),
    [
        ("QKV", 81_920),
        ("Q=K-V", 81_920),
        ("Q-K=V", 40_960),
        ("Q=K=V", 40_960),
        ("I-K=V", 40_960),
        ("GQA-4", 20_480),
        ("MQA", 5_120),
        ("Q-GQA-4", 10_240),
        ("Q-GQA-8", 20_480),
        ("Q-MQA", 2_560),
    ],
)
def test_300m_networks_keep_what_the_paper_says(label: str, published: int) -> None:
    config = gpt_300m(label)
    assert cache_bytes_per_token(config, "float16") == published
    assert cache_bytes_per_token(config, "float32") == 2 * published
    assert model_cache_bytes(as_model(config), context=32_768) == 32_768 * published


def test_a_state_is_counted_once_however_long_a_sequence() -> None:
    """Per KV head a matrix of 64 x 64 and a sum of 64, in 32 bits at least, in 10 of 20 layers."""
    layer = AttentionConfig(
        d_model=1024, num_heads=16, causal=True, variant=parse_variant("Q-GQA-4@linear")
    )
    full = dataclasses.replace(layer, variant=parse_variant("Q-MQA"))
    config = dataclasses.replace(gpt_300m("QKV"), attention=(layer, full) * 10)
    model, state = as_model(config), 10 * 4 * (64 * 64 + 64)
    assert (
        cache_bytes_per_token(config, "float16")
        == growth_bytes(model, stored_as="fp16")
        == 10 * 64 * 2
    )
    for stored_as, wide in (("fp64", 8), ("fp32", 4), ("bf16", 4), ("int4", 4), ("int8-b32", 4)):
        assert model_state_bytes(model, stored_as) == wide * state
    for context in (1, 7, 32_768):
        tokens = 10 * 64 * 2 * context
        assert model_cache_bytes(model, context=context, stored_as="bf16") == 4 * state + tokens
        assert device_cache_bytes(model, context=context, is_read=True) == 4 * state + tokens
    assert model_cache_bytes(model, context=0, stored_as="bf16") == 0
    alone = ProjectedAttention(config=layer)
    for peak in (True, False):
        held = layer_cache_bytes(alone, context=40, stored_as="int4-b32", peak=peak)
        assert held == 4 * state // 10
    unnormalised = dataclasses.replace(layer, variant=parse_variant("MQA@linear-identity"))
    assert layer_state_bytes(ProjectedAttention(config=unnormalised), "bf16") == 4 * 64 * 64


def test_a_token_of_a_block_adds_its_part_in_the_long_run() -> None:
    model = as_model(gpt_300m("QKV"))
    sizes = [model_cache_bytes(model, context=n, stored_as="int4-b32") for n in (320, 640)]
    assert growth_bytes(model, stored_as="int4-b32") * 320 == sizes[1] - sizes[0]
    assert sizes[1] == device_cache_bytes(model, context=640, stored_as="int4-b32", is_read=True)
