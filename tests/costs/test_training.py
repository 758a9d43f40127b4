"""Training plans: memory and speed written out by hand; what is kept is in tests/contracts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.arch.models import Model, as_model
from qkvary.arch.named_networks import gpt_300m
from qkvary.costs.devices import find_device
from qkvary.costs.macs import forward_macs
from qkvary.costs.training import (
    TrainingPlan,
    activation_numbers,
    plan_training,
    training_macs_per_token,
)
from tests.costs.toy_models import (
    ALL_KINDS,
    compressed_model,
    experts_model,
    language_model,
    latent_model,
    plain_layer,
    projected,
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


def test_other_blocks_by_hand() -> None:
    gated = 4 * 24 + 4 * 50
    assert activation_numbers(plain_layer(projected()), 24) == gated + 4 * 24
    latent = activation_numbers(latent_model().layers[0], 24)
    assert latent == gated + 2 * (10 + 14) + 6 * (9 + 9 + 7) + 6 * 7
    experts = activation_numbers(experts_model().layers[0], 24)
    assert experts == 8 * 24 + 4 * (3 * 13 + 17)
    window_only = activation_numbers(compressed_model().layers[0], 24)
    assert window_only == gated + 2 * 48 + 10 + 8


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
    assert found * tokens == pytest.approx(3 * forward_macs(model, tokens=tokens).total)
