"""Lemmas 3.1, 8.4 and 8.5: attention and blocks in other bases, by what their modules return."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qkvary.arch.networks import BlockConfig, Skips
from qkvary.conversions.attention_bases import find_basis, move_attention
from qkvary.conversions.bases import attention_draft, move_network
from qkvary.conversions.draft import make_draft
from qkvary.nn.attention import Attention
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.layout import Layout
from tests.contracts.variant_cases import distance
from tests.conversions.networks import make_network, spread

LABELS = ("QKV", "GQA-2", "Q-K=V@rotary", "Q-MQA@alibi")


def inputs(width: int, seed: int) -> Tensor:
    return torch.randn(2, 7, width, generator=torch.Generator().manual_seed(seed)).double()


@given(label=st.sampled_from(LABELS), seed=st.integers(0, 99))
def test_attention_depends_on_its_input_through_products_alone(label: str, seed: int) -> None:
    network, basis = make_network(label, seed=seed), spread(20, 30.0, seed)
    layer = attention_draft(make_draft(network), 0)
    moved = move_attention(layer, read=basis, written=None)
    other = Attention(moved.config).double()
    other.load_state_dict(moved.weights)
    own, x = next(iter(network.stack.blocks)).attention, inputs(20, seed)
    assert distance(other(x @ basis), own(x)) < 1e-11
    # With its own matrix as the basis, the query is the input.
    taken = find_basis(layer, "query")
    reduced = move_attention(layer, read=taken, written=None, identity="q")
    assert "q_proj.weight" not in reduced.weights
    other = Attention(reduced.config).double()
    other.load_state_dict(reduced.weights)
    assert distance(other(x @ taken), own(x)) < 1e-10


@given(
    label=st.sampled_from(LABELS),
    skips=st.sampled_from(["both", "attention", "feed-forward", "none"]),
    seed=st.integers(0, 99),
)
def test_blocks_lead_from_one_basis_into_the_next(label: str, skips: Skips, seed: int) -> None:
    block = BlockConfig(d_ff=11, norm="none", skips=skips)
    network = make_network(label, block=block, seed=seed, tied_head=False)
    first = spread(20, 10.0, seed)
    # Where both skips keep the basis (Lemma 8.5), it is one; else there are two (Lemma 8.4).
    second = first if skips == "both" else spread(20, 10.0, seed + 7)
    moved, _ = move_network(make_draft(network), [first, second], {})
    other = LanguageModel(moved.config).double().eval()
    other.load_state_dict(moved.weights)
    x = inputs(20, seed)
    layout = Layout(new_tokens=7)
    expected = next(iter(network.stack.blocks))(x, layout=layout) @ second
    assert distance(next(iter(other.stack.blocks))(x @ first, layout=layout), expected) < 1e-11
