"""A role becomes the layer input: Theorems 4.1, 4.2 and 4.3, and where they end."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkvary.arch.networks import BlockConfig, Skips
from qkvary.costs.network import network_costs
from qkvary.nn.cache import KVCache
from qkvary.storage.errors import UsageError
from tests.contracts.variant_cases import distance
from tests.conversions.networks import (
    EXACT,
    convert,
    count,
    judge,
    labels,
    make_network,
    orthogonal,
    set_query,
    spread,
)

ROLES = {
    "QKV": ("I-K-V", "Q-I-V", "Q-K-I"),
    "Q-K=V": ("I-K=V", "Q-I-I", "Q-I-I"),
    "MQA": ("I-K-V/1", None, None),
    "Q-MQA": ("I-K=V/1", None, None),
    "Q=K-V": ("I-I-V", "I-I-V", "Q=K-I"),
    "Q=K=V": ("I-I-I", "I-I-I", "I-I-I"),
    "I-K-V": (None, "Q-I-V", "Q-K-I"),
    "Q-K[r3]-V": ("I-K[r3]-V", None, "Q-K[r3]-I"),
    "(Q=K-V)+": ("(I-I-V)+", "(I-I-V)+", "(Q=K-I)+"),
    "QKV@rotary": ("I-K-V@rotary", "Q-I-V@rotary", "Q-K-I@rotary"),
    "Q-I-V@decoupled-4": ("I-K-V@decoupled-4", None, "Q-K-I@decoupled-4"),
    "Q[residual]-K=V@decoupled-4@kv-norm": ("I-K=V@decoupled-4@kv-norm", None, None),
    "QKV@key-bias": ("I-K-V@key-bias", "Q-I-V@key-bias", "Q-K-I@key-bias"),
    "Q-K=V@latent-20": ("I-K=V@latent-20", None, None),
}
"""The label after a query, a key or a value becomes the layer input; None where it is refused."""
CASES = [
    (label, role, found)
    for label, every in ROLES.items()
    for role, found in zip(("query", "key", "value"), every, strict=True)
]


@pytest.mark.parametrize(("label", "role", "expected"), CASES)
def test_every_sharing_with_a_square_source(label: str, role: str, expected: str | None) -> None:
    network = make_network(label)
    if expected is None:
        with pytest.raises(UsageError, match=r"expected (a learned|a square|keys and values)"):
            convert(network, f"identity-{role}")
        return
    made = convert(network, f"identity-{role}")
    assert judge(network, made.network) < EXACT
    assert set(labels(made.network)) == {expected}


NETWORKS = st.fixed_dictionaries(
    {
        "label": st.sampled_from(["QKV", "Q-K=V", "GQA-2", "Q-MQA@rotary", "QKV@alibi", "(Q=V)+"]),
        "heads": st.sampled_from([2, 4]),
        "head_dim": st.sampled_from([2, 3]),
        "num_layers": st.integers(1, 3),
        "shared_blocks": st.booleans(),
        "positions": st.sampled_from(["none", "learned", "sinusoidal", "sinusoidal-halves"]),
        "seed": st.integers(0, 99),
    }
)


@given(
    fields=NETWORKS,
    tied=st.booleans(),
    skips=st.sampled_from(["attention", "feed-forward", "none"]),
    activation=st.sampled_from(["relu", "gelu", "swiglu"]),
)
def test_any_network_without_norms(
    fields: dict[str, Any], tied: bool, skips: Skips, activation: Any
) -> None:
    shared = fields["shared_blocks"]
    block = BlockConfig(
        d_ff=5, norm="none", skips="both" if shared else skips, activation=activation
    )
    head: dict[str, Any] = {"tied_head": tied, "scale_embedding": tied, "head_bias": not tied}
    network = make_network(block=block, **fields, **head)
    made = convert(network, "identity-query")
    number = max(one.number for one in made.conditioning)
    assert judge(network, made.network) < 1e-13 * number * fields["num_layers"]
    assert all("I-K" in one for one in labels(made.network))
    # Only a uniform basis takes the embedding away from the head.
    assert made.network.config.tied_head == (tied and not shared)
    assert (made.network.config.positions == "none") == (fields["positions"] == "none")
    assert made.network.config.positions in ("none", "learned")


@pytest.mark.parametrize("layer", [1, 2, 3])
def test_one_layer_with_both_skips(layer: int) -> None:
    block = BlockConfig(d_ff=11, norm="none")
    network = make_network("GQA-2", block=block, num_layers=3, positions="learned")
    made = convert(network, "identity-query", layer=layer)
    expected = ["GQA-2"] * 3
    expected[layer - 1] = "I-K-V/2"
    assert labels(made.network) == expected
    assert judge(network, made.network) < EXACT
    assert made.statement == "Theorem 4.1 (one layer)"
    assert not made.network.config.tied_head
    assert any("no longer tied" in note for note in made.notes)


def test_an_identity_query_elsewhere_becomes_a_learned_one() -> None:
    block = BlockConfig(d_ff=11, norm="none")
    network = make_network("I-K-V", block=block)
    trained = make_network("QKV", block=block, num_layers=1)
    layers = (network.config.layers[0], trained.config.layers[0])
    mixed = make_network("QKV", block=block)
    config = dataclasses.replace(mixed.config, attention=layers)
    own = type(mixed)(config).double().eval()
    own.load_state_dict({name: mixed.state_dict()[name] for name in own.state_dict()})
    assert labels(own) == ["I-K-V", "QKV"]
    made = convert(own, "identity-query", layer=2)
    assert labels(made.network) == ["QKV", "I-K-V"]
    assert judge(own, made.network) < EXACT


def test_an_orthogonal_basis_keeps_the_head_tied() -> None:
    block = BlockConfig(d_ff=11, norm="none")
    network = make_network("QKV", block=block)
    set_query(network, 1, orthogonal(20, 3))
    made = convert(network, "identity-query", layer=2)
    assert made.network.config.tied_head
    assert judge(network, made.network) < EXACT
    assert count(made.network) == count(network) - 400
    set_query(network, 1, orthogonal(20, 3) * 1.01)
    assert not convert(network, "identity-query", layer=2).network.config.tied_head


@pytest.mark.parametrize("role", ["query", "key", "value"])
@pytest.mark.parametrize("label", ["QKV", "Q-K=V", "QKV@rotary"])
def test_biases(label: str, role: str) -> None:
    network = make_network(label, bias=True)
    rotated = label.endswith("rotary")
    if role == "query":
        with pytest.raises(UsageError, match="expected no query bias in layer 1"):
            convert(network, "identity-query")
        for block in network.stack.blocks:
            block.attention.projections["q"].bias.data.zero_()  # type: ignore[union-attr]
    elif role == "key" and rotated:
        with pytest.raises(UsageError, match="expected no bias that is rotated in layer 1"):
            convert(network, "identity-key")
        return
    made = convert(network, f"identity-{role}").network
    assert judge(network, made) < EXACT


@pytest.mark.parametrize("number", [1e2, 1e4, 1e6])
def test_logits_stay_equal_up_to_the_stated_condition_number(number: float) -> None:
    network = make_network("QKV", num_layers=3)
    for index in range(3):
        set_query(network, index, spread(20, 0.999 * number, 10 * index))
    made = convert(network, "identity-query")
    assert max(one.number for one in made.conditioning) == pytest.approx(0.999 * number, rel=1e-3)
    assert judge(network, made.network) < 1e-9


def test_what_is_worse_conditioned_is_refused() -> None:
    network = make_network("QKV")
    set_query(network, 1, spread(20, 2e6, 3))
    with pytest.raises(UsageError, match="expected W_Q of layer 2 with a condition number of at"):
        convert(network, "identity-query")
    set_query(network, 1, torch.zeros(20, 20))
    with pytest.raises(UsageError, match=r"condition number of at most 1e\+06"):
        convert(network, "identity-query")


def test_conditions_that_fail_are_named() -> None:
    for norm in ("layernorm", "rmsnorm"):
        block = BlockConfig(d_ff=11, norm=norm, skips="attention")
        with pytest.raises(UsageError, match=f"expected a network without norms, got {norm}"):
            convert(make_network("QKV", block=block), "identity-query")
    both = make_network("QKV", block=BlockConfig(d_ff=11, norm="none"))
    with pytest.raises(UsageError, match="choices: one layer from 1 to 2"):
        convert(both, "identity-query")
    with pytest.raises(UsageError, match="expected a layer from 1 to 2, got 3"):
        convert(both, "identity-query", layer=3)
    shared = make_network("QKV", block=BlockConfig(d_ff=11, norm="none"), shared_blocks=True)
    with pytest.raises(UsageError, match="expected no layer number with shared blocks"):
        convert(shared, "identity-query", layer=1)
    nonlinear = make_network("Q[residual-gelu]-K-V")
    with pytest.raises(UsageError, match="expected a query that is linear in the layer input"):
        convert(nonlinear, "identity-key")
    with pytest.raises(UsageError, match="without a map per head"):
        convert(make_network("Q[map]=K-V"), "identity-query")


def test_parameters_cache_and_macs_are_those_of_the_new_label() -> None:
    network = make_network("Q-GQA-2", positions="learned")
    made = convert(network, "identity-query").network
    assert labels(made) == ["I-K=V/2", "I-K=V/2"]
    costs = network_costs(made.config, length=7, dtype="float64")
    assert costs.parameters.total == count(made) == count(network) - 2 * 400
    cache = KVCache(made.config.layers)
    tokens = torch.randint(13, (1, 7), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        decoded = [made(one, cache=cache) for one in tokens.split([3, 4], dim=1)]
        assert distance(torch.cat(decoded, 1), network(tokens)) < EXACT
    assert cache.nbytes == costs.cache_bytes_per_sequence
