"""Exact statements of the documents that no other test checks; ``claims.json`` names them."""

import dataclasses
import functools

import pytest
import torch

from qkvary.analysis.ranks import effective_rank
from qkvary.arch.attention import AttentionConfig, ScaleConfig
from qkvary.arch.families.sizes import load_size
from qkvary.arch.labels import parse_variant
from qkvary.arch.models import as_model
from qkvary.arch.named_networks import gpt_300m
from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.parameters import projection_parameters
from tests.contracts import variant_cases
from tests.contracts.test_shared_weights import scores_of
from tests.contracts.variant_cases import GATE, TOKENS, distance, random_input

make_layer = functools.partial(variant_cases.make_layer, causal=False)


@pytest.mark.parametrize(("label", "times"), [("QKV", 4), ("I-K-V", 2), ("Q=K-V", 4)])
def test_scores_are_linear_in_the_weights_of_an_identity_query(label: str, times: int) -> None:
    layer, x = make_layer(label, bias=False), random_input(37)
    before = scores_of(layer, x)
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            if name.startswith(("q_proj", "k_proj")):
                weight.mul_(2)
    assert distance(scores_of(layer, x), times * before) < GATE


@pytest.mark.parametrize("causal", [True, False])
def test_a_query_is_absorbed_with_and_without_a_causal_mask(causal: bool) -> None:
    """Read in the basis W_q, the input is the query: W' = W_q^-1 W for key and value."""
    layer = make_layer("QKV", causal=causal, bias=False)
    reduced = make_layer("I-K-V", causal=causal, bias=False, scale=ScaleConfig(identity="none"))
    weights = layer.state_dict()
    basis = weights["q_proj.weight"].mT
    for name in ("k_proj.weight", "v_proj.weight"):
        weights[name] = torch.linalg.solve(basis, weights[name].mT).mT
    reduced.load_state_dict({name: one for name, one in weights.items() if "q_proj" not in name})
    x = random_input(41)
    assert distance(reduced(x @ basis), layer(x)) < 1e3 * GATE


@pytest.mark.parametrize("label", ["Q=K-V", "Q=K=V"])
def test_scores_of_one_projection_are_positive_semidefinite(label: str) -> None:
    x = random_input(43)
    least = torch.linalg.eigvalsh(scores_of(make_layer(label), x)).min()
    assert float(least) > -GATE * TOKENS
    assert float(torch.linalg.eigvals(scores_of(make_layer("QKV"), x)).real.min()) < -0.1


def test_keys_of_one_length_attend_to_themselves_most() -> None:
    keys = torch.randn(TOKENS, 5, generator=torch.Generator().manual_seed(53)).double()
    alike = keys / keys.norm(dim=-1, keepdim=True)
    own = torch.arange(TOKENS)
    assert torch.equal((alike @ alike.mT).argmax(dim=-1), own)
    # A longer key in nearly the same direction is preferred to the own one.
    longer = torch.cat([keys, 1.5 * keys[:1]])
    assert int((longer @ longer.mT)[0].argmax()) == TOKENS


@pytest.mark.parametrize("fades", [True, False])
def test_a_decay_bounds_the_state_of_linear_attention(fades: bool) -> None:
    """Of one token again and again: t phi(z) z^T, or 1 + 1/2 + 1/4 + ... times that, below 2."""
    decay = "@decay-learned" if fades else ""
    layer = make_layer(f"Q=K=V@linear@unnormalised{decay}", causal=True)
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            if name.startswith("decay"):
                # The factor 1/2 for every head.
                weight.zero_()
        x = random_input(59, batch=1)[:, :1].expand(1, TOKENS, -1)
        first, *others = (layer(x) - layer.o_proj.bias)[0]
    for t, output in enumerate(others, start=2):
        assert distance(output, (2 - 2.0 ** (1 - t) if fades else t) * first) < GATE


def test_a_low_cosine_of_query_and_key_makes_no_scores_asymmetric() -> None:
    layer, x = make_layer("QKV", bias=False), random_input(61)
    weights = dict(layer.named_parameters())
    query, key = weights["q_proj.weight"], weights["k_proj.weight"]
    # Each channel of a head times a factor in the query, and divided by it in the key.
    factors = torch.tensor([10.0, 0.1], dtype=torch.float64).repeat(len(query))[: len(query), None]
    with torch.no_grad():
        key.copy_(query / factors)
        query.mul_(factors)
        scores = scores_of(layer, x)
        cosine = torch.cosine_similarity(query.flatten(), key.flatten(), dim=0)
    assert float(cosine) < 0.1
    assert distance(scores, scores.mT) < GATE


def test_independent_matrices_have_similar_effective_ranks() -> None:
    generator = torch.Generator().manual_seed(67)
    one, other = (torch.randn(193, 191, generator=generator).double() for _ in range(2))
    assert abs(float(torch.cosine_similarity(one.flatten(), other.flatten(), dim=0))) < 0.02
    ranks = [
        dataclasses.asdict(effective_rank(torch.linalg.svdvals(matrix))) for matrix in (one, other)
    ]
    for name, rank in ranks[0].items():
        assert ranks[1][name] == pytest.approx(rank, rel=0.02), name


@pytest.mark.parametrize(
    ("label", "stored_as"), [("Q-MQA", "int4-g64-bf16"), ("Q-MQA@w4096", "bf16")]
)
def test_caches_may_be_smaller_than_that_of_q_mqa(label: str, stored_as: str) -> None:
    first = model_cache_bytes(as_model(gpt_300m("Q-MQA")), context=32_768)
    smaller = model_cache_bytes(as_model(gpt_300m(label)), context=32_768, stored_as=stored_as)
    assert smaller < first / 3


@pytest.mark.parametrize("name", ["t5-small", "t5-v1.1-large", "flan-t5-xxl"])
def test_t5_has_a_key_and_value_head_for_every_query_head(name: str) -> None:
    model = load_size(name)
    assert model.encoder is not None
    layers = (*model.layers, *model.encoder.layers)
    attention = [one for layer in layers for one in (layer.attention, layer.cross) if one]
    assert len(attention) > 2 * len(model.layers)
    assert {one.config.num_heads - one.config.num_kv_heads for one in attention} == {0}


@pytest.mark.parametrize(
    ("name", "kv_heads"),
    [
        *(("falcon-7b", 1), ("falcon-40b", 8), ("llama-2-7b", 32), ("llama-2-70b", 8)),
        *(("mistral-7b", 8), ("llama-3.1-8b", 8)),
    ],
)
def test_published_networks_share_heads_as_the_documents_say(name: str, kv_heads: int) -> None:
    attention = [layer.attention for layer in load_size(name).layers]
    assert {one.config.num_kv_heads for one in attention if one} == {kv_heads}


def test_a_low_rank_key_of_one_head_has_more_parameters_than_a_plain_one() -> None:
    keys: list[int] = []
    for label in ("MQA", "Q-K[d/4]-V/1", "QKV"):
        variant = parse_variant(label)
        layer = AttentionConfig(d_model=1024, num_heads=16, bias=False, variant=variant)
        keys.append(projection_parameters(layer, "k").weights)
    plain, low_rank, every_head = keys
    assert low_rank == 4.25 * plain < every_head
