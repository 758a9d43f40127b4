"""How a cache is divided among devices: by heads that stay whole, or not at all."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.arch.models import Model
from qkvary.costs.cache import layerwise_cache_bytes
from qkvary.costs.formats import parse_format
from qkvary.costs.replicas import device_cache_bytes
from tests.costs.toy_models import (
    ALL_KINDS,
    compressed_model,
    language_model,
    latent_model,
    plain_layer,
    projected,
    stack,
)

BF16 = parse_format("bf16")


@pytest.mark.parametrize(
    ("model", "devices", "share"),
    [
        (language_model("QKV"), 2, 1 / 2),
        (language_model("QKV"), 4, 1 / 4),
        (language_model("QKV"), 8, 1 / 8),
        (language_model("QKV"), 64, 1 / 8),
        (language_model("GQA-4"), 8, 1 / 4),
        (language_model("MQA"), 8, 1),
        (language_model("Q-MQA"), 64, 1),
        # Six heads on four devices: one of them holds two.
        (stack(plain_layer(projected())), 4, 1 / 3),
        # What all heads are made of.
        (stack(plain_layer(dataclasses.replace(projected(), storage="input"))), 6, 1),
        (latent_model(), 8, 1),
        (compressed_model(), 8, 1),
    ],
)
def test_heads_are_never_split(model: Model, devices: int, share: float) -> None:
    for is_read in (False, True):
        whole, held = (
            device_cache_bytes(model, context=23, stored_as=BF16, devices=count, is_read=is_read)
            for count in (1, devices)
        )
        assert held == whole * share


@given(model=st.sampled_from(ALL_KINDS), context=st.integers(1, 300), devices=st.integers(1, 20))
def test_each_device_holds_its_part_and_never_more_than_all(
    model: Model, context: int, devices: int
) -> None:
    whole = sum(layerwise_cache_bytes(model, context=context, stored_as=BF16, peak=True))
    held = device_cache_bytes(model, context=context, stored_as=BF16, devices=devices)
    assert whole / devices <= held <= whole
    more = device_cache_bytes(model, context=context, stored_as=BF16, devices=devices + 1)
    assert more <= held
    read = device_cache_bytes(model, context=context, is_read=True)
    own = device_cache_bytes(model, context=context, stored_as=BF16, devices=devices, is_read=True)
    assert read / devices <= own <= read
