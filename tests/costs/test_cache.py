"""Cache bytes against the papers' table."""

import dataclasses

import pytest

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.blocks import ProjectedAttention, Storage
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
    read_bytes,
    token_bytes,
)


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
        assert read_bytes(model, context=context, stored_as="bf16") == 4 * state + tokens
    assert model_cache_bytes(model, context=0, stored_as="bf16") == 0
    alone = ProjectedAttention(config=layer)
    for peak in (True, False):
        held = layer_cache_bytes(alone, context=40, stored_as="int4-b32", peak=peak)
        assert held == 4 * state // 10
    unnormalised = dataclasses.replace(layer, variant=parse_variant("MQA@linear-identity"))
    assert layer_state_bytes(ProjectedAttention(config=unnormalised), "bf16") == 4 * 64 * 64


# Heads of 6 channels, 2 of them rotated; a layer input of 24.
@pytest.mark.parametrize(
    ("label", "storage", "plain", "grouped"),
    [
        ("Q-GQA-2@rotary", "needed", 2 * 6 * 2, 2 * (3 + 2 * 4)),
        ("Q-GQA-2@rotary", "both", 2 * 2 * 6 * 2, 2 * 2 * (3 + 2 * 4)),
        ("Q-GQA-2@rotary", "value and slice", 2 * (6 + 2) * 2, 2 * (3 + 2 * 4 + 1 + 4)),
        ("QKV", "needed", 2 * 4 * 6 * 2, 2 * 4 * (3 + 2 * 4)),
        ("QKV", "both", 2 * 4 * 6 * 2, 2 * 4 * (3 + 2 * 4)),
        ("QKV", "input", 24 * 2, 12 + 6 * 4),
        ("Q-K[r3]-V/2", "latent", (3 + 2 * 6) * 2, 2 + 4 + 2 * (3 + 2 * 4)),
        ("Q-K[d/4]=V@rotary", "latent", 6 * 2, 3 + 2 * 4),
        # Wider inside than what it gives, so that what it gives is kept.
        ("Q-K[r13]-V/2", "latent", 2 * 2 * 6 * 2, 2 * 2 * (3 + 2 * 4)),
    ],
)
def test_what_is_stored_of_a_token_is_counted_by_hand(
    label: str, storage: Storage, plain: int, grouped: int
) -> None:
    config = AttentionConfig(d_model=24, num_heads=4, causal=True, variant=parse_variant(label))
    attention = ProjectedAttention(config=config, storage=storage)
    assert token_bytes(attention, "bf16") == plain
    assert token_bytes(attention, "int4-g4") == grouped


@pytest.mark.parametrize(
    ("form", "context", "expected"),
    [
        # Codes of 6 channels are 3 bytes, a row of scales 24, an unquantised token 12.
        ("int4-b8", 7, 4 * 7 * 12),
        ("int4-b8", 8, 4 * (8 * 3 + 24)),
        ("int4-b8-r5-fp32", 40, 4 * (32 * 3 + 4 * 24 + 8 * 24)),
        ("int8-g6-r3", 40, 4 * (37 * 10 + 3 * 12)),
    ],
)
def test_blocks_and_residuals_by_hand(form: str, context: int, expected: int) -> None:
    layer = AttentionConfig(d_model=24, num_heads=4, variant=parse_variant("Q-K=V"), causal=True)
    attention = ProjectedAttention(config=layer)
    assert layer_cache_bytes(attention, context=context, stored_as=form) == expected


def test_a_token_of_a_block_adds_its_part_in_the_long_run() -> None:
    model = as_model(gpt_300m("QKV"))
    sizes = [model_cache_bytes(model, context=n, stored_as="int4-b32") for n in (320, 640)]
    assert growth_bytes(model, stored_as="int4-b32") * 320 == sizes[1] - sizes[0]
    assert read_bytes(model, context=640, stored_as="int4-b32") == sizes[1]
