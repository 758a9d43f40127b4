"""The per-head gauge of both pairs: Proposition 4.2."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkvary.arch.attention import ValueRope
from qkvary.arch.networks import BlockConfig
from qkvary.conversions.attention_bases import LayerDraft
from qkvary.conversions.rewrites.gauge import apply_gauge, draw_gauge
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError
from tests.contracts.variant_cases import LABELS, variant_values
from tests.conversions.networks import EXACT, convert, judge, labels, make_network

FIXED = ("I-K=V", "Q=V-I", "Q-I-I", "I-K-I", "I-I-I", "Q[residual]-K=V")
PARTS = ("@so", "@linear", "kv-norm", "qk-norm", "latent")
FREE = [
    label
    for label in LABELS
    if not (any(part in label for part in PARTS) or label.strip("(").startswith(FIXED))
]


def moved(network: LanguageModel, made: LanguageModel) -> set[str]:
    """The parts of attention whose weights are others."""
    first, second = network.state_dict(), made.state_dict()
    return {name.split(".")[4] for name in first if (first[name] - second[name]).abs().max() > 1e-3}


@variant_values("label", FREE)
def test_every_sharing(label: str) -> None:
    network = make_network(label, bias=True, num_layers=1)
    made = convert(network, "gauge").network
    assert judge(network, made) < EXACT
    assert labels(made) == labels(network)
    assert moved(network, made)


@pytest.mark.parametrize(
    ("label", "sentence"),
    [
        *(
            (label, "a key or value whose basis is not fixed by an identity role")
            for label in FIXED
        ),
        ("Q-K=V@kv-norm", "keys and values that are projections in layer"),
        ("Q-K=V@latent-7", "keys and values that are projections in layer"),
    ],
)
def test_what_has_no_gauge_is_refused(label: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=f"expected {sentence}"):
        convert(make_network(label), "gauge")


@given(
    label=st.sampled_from(["QKV", "GQA-2", "Q-MQA", "Q=K-V", "Q=V", "Q[map]=K-V", "GQA-2+@alibi"]),
    rotary=st.booleans(),
    value_rope=st.sampled_from(["none", "counter"]),
    head_dim=st.integers(2, 7),
    norm=st.sampled_from(["none", "layernorm", "rmsnorm"]),
    seed=st.integers(0, 99),
)
def test_any_heads_skips_and_norms(
    label: str, rotary: bool, value_rope: ValueRope, head_dim: int, norm: str, seed: int
) -> None:
    if rotary and "@" not in label:
        label = f"{label}@rotary"
    block = BlockConfig(d_ff=5, norm=norm)  # type: ignore[arg-type]
    network = make_network(
        label, head_dim=head_dim, block=block, value_rope=value_rope, bias=True, num_layers=1
    )
    made = convert(network, "gauge", seed=seed)
    assert judge(network, made.network) < EXACT
    assert max(one.number for one in made.conditioning) < 10.1


def test_a_gauge_that_does_not_commute_with_rotation_changes_the_layer() -> None:
    network = make_network("QKV@rotary", num_layers=1)
    weights = {
        name.removeprefix("stack.blocks.0.attention."): one
        for name, one in network.state_dict().items()
        if ".attention." in name
    }
    still = make_network("QKV", num_layers=1).config.layers[0]
    generator = torch.Generator().manual_seed(3)
    gauge = draw_gauge(LayerDraft(still, weights, "layer 1"), generator)
    changed = apply_gauge(LayerDraft(network.config.layers[0], weights, "layer 1"), gauge)
    other = LanguageModel(network.config).double().eval()
    own = {f"stack.blocks.0.attention.{name}": one for name, one in changed.weights.items()}
    other.load_state_dict({**network.state_dict(), **own})
    assert judge(network, other) > 1e-2


def test_a_network_whose_logits_are_zero_is_rewritten() -> None:
    network = make_network("QKV")
    network.embedding.data.zero_()
    made = convert(network, "gauge")
    assert (made.exact.largest, made.exact.relative, made.exact.changed) == (0.0, 0.0, 0.0)
