"""How a cache is divided among devices: by heads that stay whole, or not at all."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from qkvary.arch.models import Model
from qkvary.costs.cache import layerwise_cache_bytes, model_cache_bytes, read_bytes
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


def test_heads_are_never_split() -> None:
    for label, devices, share in (
        ("QKV", 2, 1 / 2),
        ("QKV", 4, 1 / 4),
        ("QKV", 8, 1 / 8),
        ("QKV", 64, 1 / 8),
        ("GQA-4", 8, 1 / 4),
        ("MQA", 8, 1),
        ("Q-MQA", 64, 1),
        # Six heads on four devices: one of them holds two.
        ("six", 4, 1 / 3),
    ):
        model = stack(plain_layer(projected())) if label == "six" else language_model(label)
        whole = model_cache_bytes(model, context=10)
        held = device_cache_bytes(model, context=10, stored_as=BF16, devices=devices)
        assert held == whole * share


def test_what_all_heads_are_made_of_is_on_every_device() -> None:
    layer = plain_layer(dataclasses.replace(projected(), storage="input"))
    whole = model_cache_bytes(stack(layer), context=10)
    assert device_cache_bytes(stack(layer), context=10, stored_as=BF16, devices=6) == whole


def test_latents_and_summaries_are_on_every_device() -> None:
    for model in (latent_model(), compressed_model()):
        whole, divided = (
            device_cache_bytes(model, context=23, stored_as=BF16, devices=devices)
            for devices in (1, 8)
        )
        assert whole == divided


@given(model=st.sampled_from(ALL_KINDS), context=st.integers(1, 300), devices=st.integers(1, 20))
def test_each_device_holds_its_part_and_never_more_than_all(
    model: Model, context: int, devices: int
) -> None:
    whole = sum(layerwise_cache_bytes(model, context=context, stored_as=BF16, peak=True))
    held = device_cache_bytes(model, context=context, stored_as=BF16, devices=devices)
    assert whole / devices <= held <= whole
    more = device_cache_bytes(model, context=context, stored_as=BF16, devices=devices + 1)
    assert more <= held
    read = read_bytes(model, context=context, stored_as=BF16)
    own = device_cache_bytes(model, context=context, stored_as=BF16, devices=devices, is_read=True)
    assert read / devices <= own <= read
