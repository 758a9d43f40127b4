"""One decoding step: bytes and products written out by hand, and the roofline over them."""

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.arch.families.sizes import load_size
from qkvary.arch.models import Model
from qkvary.costs.decoding import (
    DecodeStep,
    decode_step,
    expected_experts,
    read_weights,
    weight_bytes,
)
from qkvary.costs.devices import Device, find_device
from qkvary.costs.formats import parse_format
from qkvary.costs.parameters import model_parameters
from tests.costs.toy_models import (
    encoder_decoder_model,
    experts_model,
    language_model,
    tied_rotary_model,
)

BF16, FP32, INT4 = map(parse_format, ("bf16", "fp32", "int4"))


def step_of(model: Model, *, batch: int = 1, context: int = 1, devices: int = 1) -> DecodeStep:
    return decode_step(
        model, batch=batch, context=context, weights=BF16, cache=BF16, devices=devices
    )


def test_llama_8b_by_hand() -> None:
    d, kv, d_ff, layers, vocabulary, context, batch = 4096, 1024, 14_336, 32, 128_256, 32_768, 3
    block = d * d + 2 * d * kv + d * d + 3 * d * d_ff
    read = layers * (block + 2 * d) + d + d * vocabulary
    step = step_of(load_size("llama-3.1-8b"), batch=batch, context=context)
    assert step.weight_bytes == 2 * read == 15_009_849_344
    assert step.cache_bytes == batch * 4 * 2**30
    assert step.macs == batch * (layers * (block + 2 * context * d) + d * vocabulary)
    device = find_device("a100-80gb")
    moved = 2 * read + batch * 4 * 2**30 + batch * layers * 2 * kv * 2
    assert step.seconds(device) == moved / 2_039e9


def test_what_the_encoder_left_behind_is_not_made_again() -> None:
    model = encoder_decoder_model()
    found = model_parameters(model)
    encoder = 4 * 24 * 24 + 3 * 24 * 50 + 2 * 24 + 24
    crossing = 2 * (24 * 24 + 24 * 24)
    assert read_weights(model, batch=1) == found.total - found.embedding - encoder - crossing
    step = decode_step(model, batch=1, context=10, weights=BF16, cache=BF16, encoder_tokens=31)
    assert step.cache_bytes == 2 * (10 + 31) * 48 * 2
    assert step.written_bytes == 2 * 48 * 2


@pytest.mark.parametrize("batch", [1, 4, 20])
def test_expected_experts_by_drawing_them(batch: int) -> None:
    part = experts_model(count=11, active=3).layers[0].feed_forward[0]
    generator = random.Random(batch)
    drawn = [
        len({expert for _ in range(batch) for expert in generator.sample(range(11), 3)})
        for _ in range(4000)
    ]
    error = statistics.stdev(drawn) / len(drawn) ** 0.5 if batch > 1 else 1e-9
    assert expected_experts(part, batch) == pytest.approx(  # type: ignore[arg-type]
        statistics.mean(drawn), abs=4 * error + 1e-9
    )


@given(
    moved=st.floats(1, 1e15),
    macs=st.integers(1, 10**18),
    bandwidth=st.floats(1e9, 1e13),
    flops=st.floats(1e9, 1e16),
)
def test_the_roofline_is_the_larger_of_both(
    moved: float, macs: int, bandwidth: float, flops: float
) -> None:
    step = DecodeStep(
        batch=2, context=1, weight_bytes=moved, cache_bytes=0, written_bytes=0, macs=macs
    )
    device = Device(
        name="x",
        title="x",
        memory_bytes=1,
        bandwidth_bytes_per_second=bandwidth,
        flops_per_second_16_bit=flops,
    )
    memory, arithmetic = moved / bandwidth, 2 * macs / flops
    assert step.seconds(device) == max(memory, arithmetic)
    assert step.seconds(device, devices=4) == max(memory, arithmetic) / 4
    assert step.bound(device) == ("arithmetic" if arithmetic >= memory else "weights")


def test_what_every_device_holds_is_read_by_each() -> None:
    # Eight heads: divided among 8 devices, on 16 twice; two heads: each on four of eight devices.
    for label, devices, times in (("QKV", 8, 1), ("QKV", 16, 2), ("GQA-2", 8, 4)):
        model = language_model(label)
        whole = step_of(model, context=29, devices=1).cache_bytes
        assert step_of(model, context=29, devices=devices).cache_bytes == times * whole


def test_formats_count_where_they_are_used() -> None:
    model = tied_rotary_model()
    plain, small = (
        decode_step(model, batch=1, context=9, weights=weights, cache=cache)
        for weights, cache in ((FP32, BF16), (INT4, FP32))
    )
    assert plain.weight_bytes == 4 * read_weights(model, batch=1)
    assert small.weight_bytes == pytest.approx(read_weights(model, batch=1) * (0.5 + 4 / 64))
    assert small.cache_bytes == 2 * plain.cache_bytes
    assert weight_bytes(model, FP32) == 4 * model_parameters(model).total
