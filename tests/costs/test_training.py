"""Training plans: memory and speed written out by hand; what is kept is in tests/contracts."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.arch.blocks import FeedForward
from qkvary.arch.families.sizes import load_size
from qkvary.arch.models import Model, as_model
from qkvary.arch.parts import Norm
from qkvary.arch.published_networks import gpt_300m
from qkvary.costs.devices import Device, find_device
from qkvary.costs.macs import forward_macs
from qkvary.costs.parameters import model_parameters
from qkvary.costs.training import (
    TrainingPlan,
    activation_bytes,
    activation_numbers,
    crossing_numbers,
    plan_training,
    training_macs_per_token,
)
from tests.arch.synthetic_networks import synthetic_encoder
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
)

A100 = find_device("a100-40gb")


def plan(model: Model, **fields: object) -> TrainingPlan:
    given: dict[str, object] = {"device": A100, "tokens": 13}
    return plan_training(model, **(given | fields))  # type: ignore[arg-type]


def test_the_papers_network_by_hand() -> None:
    d, layers, vocabulary, tokens = 1024, 20, 50_304, 2048
    # Norms 4, query key value mixed 4, up and GELU 2 x 4; the last norm and the head 2.
    kept = layers * 16 * d + 2 * d
    found = plan(as_model(gpt_300m("QKV")), tokens=tokens)
    assert found.state_bytes == 16 * 305_534_976
    assert found.sequence_bytes == tokens * (2 * kept + 8 * vocabulary)
    free = 36 * 10**9 - found.state_bytes
    assert found.largest_batch == free // found.sequence_bytes == 14
    visible = 706_832_498_688
    assert found.macs_per_token == 3 * visible / tokens
    assert found.tokens_per_second == pytest.approx(0.4 * 312e12 / (6 * visible / tokens))


@pytest.mark.parametrize(
    ("label", "numbers"),
    [
        # 48 channels: norms 4, query, key, value, mixed, and 2 x 5 for the feed-forward network.
        ("QKV", 48 * 18),
        ("Q-K=V", 48 * 17),
        ("Q=K=V", 48 * 16),
        ("I-K-V", 48 * 17),
        ("GQA-2", 48 * 16 + 2 * 2 * 6),
        ("MQA", 48 * 16 + 2 * 6),
        ("Q-MQA", 48 * 16 + 6),
    ],
)
def test_a_block_by_hand(label: str, numbers: int) -> None:
    assert activation_numbers(language_model(label).layers[0], 48) == numbers


def test_other_blocks_by_hand() -> None:
    gated = 4 * 24 + 4 * 50
    assert activation_numbers(plain_layer(projected()), 24) == gated + 4 * 24
    latent = activation_numbers(latent_model().layers[0], 24)
    assert latent == gated + 2 * (10 + 14) + 6 * (9 + 9 + 7) + 6 * 7
    experts = activation_numbers(experts_model().layers[0], 24)
    assert experts == 8 * 24 + 4 * (3 * 13 + 17)
    window_only = activation_numbers(compressed_model().layers[0], 24)
    assert window_only == gated + 2 * 48 + 10 + 8


def test_norms_keep_their_inputs() -> None:
    layer = plain_layer(projected())
    before = activation_numbers(layer, 24)
    norm = (Norm(width=24),)
    assert activation_numbers(dataclasses.replace(layer, norms=norm * 4), 24) == before + 2 * 24
    assert activation_numbers(dataclasses.replace(layer, norms=norm), 24) == before - 2 * 24
    # Without learned gains there are norms all the same.
    assert activation_numbers(dataclasses.replace(layer, norms=()), 24) == before


def test_an_encoder_is_trained_too() -> None:
    model = encoder_decoder_model("MQA")
    tokens, seen = 11, 17
    own = 6 * 24 + 24 + 24 + 2 * 4 + 4 * 50 + 2 * 24
    encoding = 4 * 24 + 2 * 24 + 2 * 4 + 4 * 50
    assert (activation_numbers(model.layers[0], 24), crossing_numbers(model.layers[0])) == (own, 8)
    numbers = 2 * (tokens * own + seen * 8) + seen * encoding + 2 * 24 * (tokens + seen)
    found = activation_bytes(model, tokens=tokens, precision="fp32", encoder_tokens=seen)
    assert found == 4 * numbers + 8 * 101 * tokens
    planned = plan(model, tokens=tokens, precision="fp32", encoder_tokens=seen)
    assert planned.sequence_bytes == found
    products = forward_macs(model, tokens=tokens, encoder_tokens=seen).total
    assert planned.macs_per_token == 3 * products / tokens


def test_checkpointing_trades_memory_for_a_second_forward_pass() -> None:
    model = language_model(num_layers=7)
    whole, again = plan(model), plan(model, checkpointing=True)
    kept = 7 * 48 + (18 - 1) * 48 + 2 * 48
    assert again.sequence_bytes == 13 * (2 * kept + 8 * 101)
    assert again.sequence_bytes < whole.sequence_bytes
    assert again.macs_per_token * 3 == whole.macs_per_token * 4
    assert whole.tokens_per_second is not None
    assert again.tokens_per_second == pytest.approx(0.75 * whole.tokens_per_second)


@given(model=st.sampled_from(ALL_KINDS), tokens=st.integers(1, 50))
def test_what_the_model_asks_for_is_what_a_plan_counts(model: Model, tokens: int) -> None:
    found = training_macs_per_token(model, tokens=tokens)
    assert found == plan(model, tokens=tokens).macs_per_token
    assert found <= plan(model, tokens=tokens, checkpointing=True).macs_per_token
    assert found <= training_macs_per_token(model, tokens=tokens, pairs="square")
    assert found * tokens == pytest.approx(3 * forward_macs(model, tokens=tokens).total)


def test_checkpointing_one_block_saves_nothing() -> None:
    for model in (language_model(num_layers=1), stack(plain_layer(projected()))):
        assert plan(model).sequence_bytes == plan(model, checkpointing=True).sequence_bytes


@given(model=st.sampled_from(ALL_KINDS), tokens=st.integers(1, 50))
def test_checkpointing_never_keeps_more(model: Model, tokens: int) -> None:
    whole, again = (plan(model, tokens=tokens, checkpointing=on) for on in (False, True))
    assert again.sequence_bytes <= whole.sequence_bytes
    assert again.state_bytes == whole.state_bytes == 16 * model_parameters(model).total


@given(model=st.sampled_from(ALL_KINDS), tokens=st.integers(1, 50), more=st.integers(0, 50))
def test_longer_sequences_take_more(model: Model, tokens: int, more: int) -> None:
    short, long = plan(model, tokens=tokens), plan(model, tokens=tokens + more)
    assert short.sequence_bytes <= long.sequence_bytes
    assert short.largest_batch >= long.largest_batch


def test_precision_is_that_of_activations() -> None:
    model = language_model()
    mixed, full = (plan(model, precision=kind).sequence_bytes for kind in ("mixed", "fp32"))
    logits = 13 * 8 * 101
    assert full - logits == 2 * (mixed - logits)


def test_networks_that_decode_nothing_are_trained_as_well() -> None:
    found = plan(as_model(synthetic_encoder("Q=K-V")), tokens=16)
    assert found.state_bytes == 16 * 64_266
    assert found.largest_batch > 1000


def test_what_does_not_fit_has_no_batch() -> None:
    assert plan(load_size("llama-3.1-8b")).largest_batch == 0
    tiny = Device(name="x", title="x", memory_bytes=1)
    assert plan(language_model(), device=tiny).largest_batch == 0
    assert plan(language_model(), device=tiny).tokens_per_second is None


def test_two_networks_in_one_block_are_both_kept() -> None:
    layer = plain_layer(projected())
    second = FeedForward(d_model=24, d_ff=9)
    both = dataclasses.replace(layer, feed_forward=(*layer.feed_forward, second))
    assert activation_numbers(both, 24) - activation_numbers(layer, 24) == 2 * 9


@pytest.mark.parametrize(
    "fields",
    [{"reserve": 1.0}, {"reserve": -0.1}, {"utilization": 0.0}, {"utilization": 1.1}],
)
def test_impossible_shares_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"expected a reserve in \[0, 1\) and a utilization in"):
        plan(language_model(), **fields)
    with pytest.raises(ValueError, match="expected a length of at least 1 token, got 0"):
        plan(language_model(), tokens=0)
