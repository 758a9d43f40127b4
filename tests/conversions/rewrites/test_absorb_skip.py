"""Skips of ReLU networks: Theorem 8.3 in both directions, and Corollary 8.3.1 as a property."""

import itertools

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from qkvary.arch.networks import BlockConfig, NormPlacement
from qkvary.conversions.rewrites.absorb_skip import absorb_skip, decide_skip
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError
from tests.conversions.networks import EXACT, convert, judge, labels, make_network


def draw(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


def absorbable(d_model: int, d_ff: int, chosen: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Matrices for which -W_2 P_I W_1 is the identity, and the channels I."""
    up, down = draw(d_ff, d_model, seed=seed), draw(d_model, d_ff, seed=seed + 1)
    order = torch.randperm(d_ff, generator=torch.Generator().manual_seed(seed))
    channels = torch.zeros(d_ff, dtype=torch.bool)
    channels[order[:chosen]] = True
    down[:, channels] = -torch.linalg.pinv(up[channels])
    return up, down, channels


def with_absorbable(network: LanguageModel, chosen: int) -> LanguageModel:
    """The network with such matrices in every block."""
    for index, block in enumerate(network.stack.blocks):
        d_ff, d_model = block.feed_forward.up.weight.shape
        up, down, _ = absorbable(d_model, d_ff, chosen, 10 * index)
        block.feed_forward.up.weight.data.copy_(up)
        block.feed_forward.down.weight.data.copy_(down)
    return network


@given(
    d_model=st.integers(2, 5),
    more=st.integers(0, 3),
    others=st.integers(0, 4),
    seed=st.integers(0, 99),
)
def test_what_can_be_absorbed_is_found(d_model: int, more: int, others: int, seed: int) -> None:
    chosen = d_model + more
    d_ff = chosen + others
    assume(d_ff <= d_model**2 and (more == 0 or chosen < d_ff))
    up, down, channels = absorbable(d_model, d_ff, chosen, seed)
    assume(float(torch.linalg.cond(up[channels])) < 50)
    found = decide_skip(up, down)
    assert found.channels is not None
    assert torch.equal(found.channels, channels)
    bias, out = draw(d_ff, seed=seed + 2), draw(d_model, seed=seed + 3)
    weights = {"up.weight": up, "up.bias": bias, "down.weight": down, "down.bias": out}
    made = absorb_skip(weights, found.channels)
    x = 3 * draw(50, d_model, seed=seed + 4)
    expected = x + (x @ up.mT + bias).relu() @ down.mT + out
    without = (x @ made["up.weight"].mT + made["up.bias"]).relu() @ made["down.weight"].mT
    assert float((without + made["down.bias"] - expected).abs().max()) < 1e-11


@given(d_model=st.integers(2, 6), times=st.integers(1, 8), seed=st.integers(0, 9999))
def test_almost_no_network_absorbs_its_skip(d_model: int, times: int, seed: int) -> None:
    d_ff = times * d_model
    found = decide_skip(draw(d_ff, d_model, seed=seed), draw(d_model, d_ff, seed=seed + 1))
    assert found.channels is None
    # Where the products span all matrices some coefficients solve the equation, but not 0 and 1.
    assert ("linearly dependent" in found.reason) == (d_ff > d_model**2)


@given(
    d_model=st.integers(2, 3), d_ff=st.integers(2, 6), built=st.booleans(), seed=st.integers(0, 99)
)
def test_only_the_condition_absorbs_a_skip(d_model: int, d_ff: int, built: bool, seed: int) -> None:
    """An equal network bends where this one does, so its rows have the same directions.

    What remains to be chosen are their signs. All of them are tried, without ``decide_skip``.
    """
    assume(d_model <= d_ff <= d_model**2)
    up, down, channels = absorbable(d_model, d_ff, d_model, seed)
    if built:
        assume(float(torch.linalg.cond(up[channels])) < 50)
    else:
        down = draw(d_model, d_ff, seed=seed + 1)
    x = draw(30, d_model, seed=seed + 2)
    expected = x + (x @ up.mT).relu() @ down.mT
    equal: list[Tensor] = []
    for signs in itertools.product((1.0, -1.0), repeat=d_ff):
        turned = torch.tensor(signs).double()
        found = (turned * (x @ up.mT)).relu() @ down.mT
        if float((found - expected).abs().max()) < 1e-9:
            equal.append(turned < 0)
    decided = decide_skip(up, down).channels
    assert len(equal) == int(built)
    assert (decided is not None) == built
    assert all(torch.equal(one, channels) and torch.equal(one, decided) for one in equal)


def test_fewer_channels_than_the_width_are_never_enough() -> None:
    assert "-W_2 P W_1 is not the identity" in decide_skip(*absorbable(4, 6, 3, 5)[:2]).reason


def test_opposite_rows_absorb_a_skip_or_leave_it_undecided() -> None:
    rows = torch.tensor([[1, 0], [-2, 0], [0, 1], [0, -2]]).double()
    assert "rows of W_1 are collinear" in decide_skip(rows, draw(2, 4)).reason
    down = rows.new_tensor([[-1, 0, 1], [0, -1, 1]])
    assert decide_skip(rows[[0, 2, 1]], down).channels.tolist() == [True, True, False]


@pytest.mark.parametrize("placement", ["pre", "post", "stream"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
def test_networks_that_absorb_their_skips(placement: NormPlacement, shared: bool) -> None:
    norm = "none" if placement == "pre" else "rmsnorm"
    block = BlockConfig(d_ff=11, norm=norm, norm_placement=placement, activation="relu")
    network = make_network("GQA-2", heads=2, head_dim=4, block=block, shared_blocks=shared)
    made = convert(with_absorbable(network, 9), "absorb-skip").network
    assert made.config.block.skips == "attention"
    assert judge(network, made) < EXACT


def test_then_every_query_can_go() -> None:
    block = BlockConfig(d_ff=11, norm="none", activation="relu")
    network = with_absorbable(make_network("QKV", heads=2, head_dim=4, block=block), 9)
    with pytest.raises(UsageError, match="got both skips"):
        convert(network, "identity-query")
    made = convert(convert(network, "absorb-skip").network, "identity-query").network
    assert set(labels(made)) == {"I-K-V"}
    assert judge(network, made) < 1e-9


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        (BlockConfig(d_ff=11, norm="none", activation="relu"), "layer 1 .Theorem 8.3., got none"),
        (BlockConfig(d_ff=11, norm="none"), "expected the activation relu, got gelu"),
        (BlockConfig(d_ff=11, norm="none", activation="relu", skips="none"), "got none"),
        (BlockConfig(d_ff=11, activation="relu"), "got layernorm; choices: norm none"),
    ],
)
def test_conditions_that_fail_are_named(block: BlockConfig, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        convert(make_network("QKV", block=block), "absorb-skip")
