"""Products of the two matrices of a single head: Proposition 4.1 and Remark 1."""

import pytest

from qkvary.arch.networks import BlockConfig
from qkvary.storage.errors import UsageError
from tests.conversions.networks import EXACT, convert, count, judge, labels, make_network

BLOCK = BlockConfig(d_ff=11, norm="rmsnorm")
QUERY = {
    "QKV": "I-K-V",
    "Q-K=V": "I-K=V",
    "Q-K-I": "I-K-I",
    "Q-I-I": "I-K-I",
    "Q-K[r3]-V[r2]": "I-K[r3]-V[r2]",
    "MQA": "I-K-V",
    "(Q-K=V)+": "(I-K=V)+",
    "Q[residual]-I-V@decoupled-4": "I-K-V@decoupled-4",
    "QKV@w3@t0.5": "I-K-V@w3@t0.5",
}
VALUE = {
    "QKV": "Q-K-I",
    "I-K-V": "I-K-I",
    "I-I-V": "I-I-I",
    "Q-I-V": "Q-I-I",
    "Q-K[r3]-V[r2]": "Q-K[r3]-I",
    "QKV@rotary": "Q-K-I@rotary",
}


@pytest.mark.parametrize("label", QUERY)
def test_query_and_key(label: str) -> None:
    network = make_network(label, heads=1, head_dim=7, block=BLOCK, num_layers=1)
    made = convert(network, "merge-query-key")
    assert labels(made.network) == [QUERY[label]]
    assert judge(network, made.network) < EXACT
    # Nothing is inverted but where the value reads the key too.
    assert len(made.conditioning) == ("K=V" in label)


@pytest.mark.parametrize("label", VALUE)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_value_and_output(label: str, bias: bool) -> None:
    network = make_network(label, heads=1, head_dim=7, block=BLOCK, num_layers=1, bias=bias)
    made = convert(network, "merge-value-output").network
    assert labels(made) == [VALUE[label]]
    assert judge(network, made) < EXACT
    assert count(made) < count(network)


def test_both_in_one_layer_leave_one_key() -> None:
    network = make_network("QKV", heads=1, head_dim=7, block=BLOCK)
    made = convert(network, "merge-query-key", layer=2).network
    made = convert(made, "merge-value-output", layer=2).network
    assert labels(made) == ["QKV", "I-K-I"]
    assert judge(network, made) < EXACT
    assert count(made) == count(network) - 2 * 49


@pytest.mark.parametrize(
    ("label", "fields", "rewrite", "sentence"),
    [
        ("QKV", {"heads": 4}, "merge-query-key", "one head of 20 channels in layer 1, got 4 of 5"),
        ("QKV@rotary", {}, "merge-query-key", "no rotary positions in layer 1"),
        ("Q-K=V@rotary", {}, "merge-value-output", "a value with its own projection"),
        ("QKV", {"bias": True}, "merge-query-key", "no query bias in layer 1"),
        ("QKV@soft", {}, "merge-query-key", "the core softmax in layer 1, got soft"),
    ],
)
def test_conditions_that_fail_are_named(
    label: str, fields: dict[str, int], rewrite: str, sentence: str
) -> None:
    network = make_network(label, **{"heads": 1, **fields})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"expected {sentence}"):
        convert(network, rewrite)
