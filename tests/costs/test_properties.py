"""What holds for the costs of models of every kind, by hand and against each other.

What a cache keeps is held to the caches of transformers in ``tests/contracts``.
"""

import dataclasses
from typing import Any

import pytest

from qkvary.arch.blocks import Experts
from qkvary.arch.models import Model
from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.decoding import decode_step
from qkvary.costs.formats import parse_format
from qkvary.costs.macs import decode_macs, forward_macs
from qkvary.costs.parameters import active_parameters, model_parameters
from qkvary.costs.replicas import device_cache_bytes
from tests.costs.toy_models import (
    ALL_KINDS,
    compressed_model,
    encoder_decoder_model,
    experts_model,
    language_model,
    latent_model,
    plain_layer,
    projected,
    stack,
    tied_rotary_model,
)


@pytest.mark.parametrize(
    ("model", "numbers"),
    [
        (language_model(), 3 * 29 * 2 * 48),
        # A token sees itself and four others.
        (language_model("QKV@w5"), 3 * 5 * 2 * 48),
        (latent_model(), 2 * 29 * (14 + 4)),
        (tied_rotary_model(), 5 * 6 * 2 * 3 * 8 + 29 * 2 * 2 * 16),
        (encoder_decoder_model(), 2 * (29 + 11) * 48),
        (encoder_decoder_model("Q-K=V", tokens=19), 2 * (29 + 19) * 24),
        # Windows of 5; 4 summaries of 7; 7 keys of the indexer of 4 tokens each, and 3 picked.
        (compressed_model(), 5 * 8 + (5 + 4) * 8 + (5 + 3) * 8 + 7 * 3),
    ],
)
def test_what_a_token_reads_by_hand(model: Model, numbers: int) -> None:
    read = device_cache_bytes(model, context=29, encoder_tokens=11, is_read=True)
    assert read == 2 * numbers


def test_a_layer_that_reads_another_one_keeps_nothing_and_reads_as_much() -> None:
    layer = plain_layer(projected("GQA-2@w9"))
    reader = plain_layer(dataclasses.replace(projected("GQA-2@w9"), reads_layer=0))
    one, two = stack(layer), stack(layer, reader)
    for context in (3, 29):
        kept = (model_cache_bytes(model, context=context) for model in (one, two))
        assert len({*kept}) == 1
        read = [device_cache_bytes(model, context=context, is_read=True) for model in (one, two)]
        assert read[1] == 2 * read[0] == 2 * min(context, 9) * 2 * 2 * 4 * 2


@pytest.mark.parametrize("model", ALL_KINDS, ids=lambda model: model.name)
@pytest.mark.parametrize("form", ["fp32", "int4-g5"])
def test_a_batch_reads_and_writes_as_often_as_it_has_sequences(model: Model, form: str) -> None:
    call: dict[str, Any] = {
        "context": 23,
        "weights": parse_format("bf16"),
        "cache": parse_format(form),
    }
    one, many = (decode_step(model, batch=size, **call) for size in (1, 7))
    assert many.cache_bytes == 7 * one.cache_bytes
    assert many.written_bytes == 7 * one.written_bytes
    assert many.macs == 7 * one.macs
    assert one.weight_bytes <= many.weight_bytes <= 7 * one.weight_bytes * (1 + 1e-9)
    own = dataclasses.replace(
        model, layers=tuple(dataclasses.replace(layer, cross=None) for layer in model.layers)
    )
    assert one.written_bytes == model_cache_bytes(own, context=1, stored_as=form)


@pytest.mark.parametrize(
    "model", [one for one in ALL_KINDS if one.encoder is None and one.name != "latent"]
)
def test_decoding_multiplies_as_much_as_one_forward_pass(model: Model) -> None:
    """Summaries are pooled elementwise, so that compression is no exception."""
    steps = [dataclasses.asdict(decode_macs(model, context=tokens)) for tokens in range(1, 24)]
    summed = {name: sum(step[name] for step in steps) for name in steps[0]}
    assert summed == dataclasses.asdict(forward_macs(model, tokens=23))


@pytest.mark.parametrize("model", ALL_KINDS, ids=lambda model: model.name)
def test_active_parameters_leave_out_idle_experts(model: Model) -> None:
    idle = sum(
        (part.count - part.active) * 3 * 24 * 13
        for layer in model.layers
        for part in layer.feed_forward
        if isinstance(part, Experts)
    )
    assert active_parameters(model) == model_parameters(model).total - idle
    assert (idle > 0) == (model == experts_model())
