"""A network whose weights happen to be shared equals the network in which they are one."""

import dataclasses

import pytest
import torch
from torch import Tensor

from qkvary.arch.attention import ScaleConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.sharing import share
from qkvary.arch.terms import TERMS, TermEntry
from qkvary.nn.attention import Attention
from qkvary.nn.layout import Layout
from tests.contracts.variant_cases import (
    D_MODEL,
    GATE,
    HEAD_DIM,
    HEADS,
    LABELS,
    TERM_LABELS,
    TOKENS,
    distance,
    make_layer,
    random_input,
    variant_values,
)

# A gelu and a norm have no matrix, and a diagonal can be normalised only where query and key are
# one tensor.
LINEAR = [
    label for label in LABELS if not any(word in label for word in ("gelu", "diag", "kv-norm"))
]


def role_matrix(layer: Attention, role: str) -> tuple[Tensor, Tensor]:
    """The map from the layer input to a role as one matrix [width, d_model] and one bias."""
    source = layer.config.variant.sharing.roles[role]  # type: ignore[index]
    if source == "x":
        weight, bias = torch.eye(D_MODEL).double(), torch.zeros(D_MODEL).double()
    else:
        projection = getattr(layer, f"{source}_proj")
        weight, bias = projection.weight, projection.bias
        weight = weight @ projection.down if hasattr(projection, "down") else weight
    if role != "query" and layer.config.variant.latent is not None:
        expansion = getattr(layer.latent, role).weight
        weight, bias = expansion @ weight, expansion @ bias
    if role != "query" or layer.config.variant.query_form == "plain":
        return weight, bias
    if layer.query_map is None:
        return weight + torch.eye(D_MODEL).double(), bias
    copies = HEADS * HEAD_DIM // len(bias)
    per_head = weight.view(-1, HEAD_DIM, D_MODEL).repeat_interleave(copies, dim=0)
    biases = bias.view(-1, HEAD_DIM).repeat_interleave(copies, dim=0)
    mapped = layer.query_map.mT @ per_head
    return mapped.flatten(0, 1), (layer.query_map.mT @ biases[..., None]).flatten()


def unshare(layer: Attention) -> Attention:
    """The same function with three projections of its own."""
    config = layer.config
    heads = None if config.num_kv_heads == HEADS else config.num_kv_heads
    plain = {"query_form": "plain", "k_rank": None, "v_rank": None, "latent": None}
    qkv = {"sharing": share("q", "k", "v"), "num_kv_heads": heads, **plain}
    variant = dataclasses.replace(config.variant, **qkv)  # type: ignore[arg-type]
    free = Attention(dataclasses.replace(config, variant=variant)).double()
    with torch.no_grad():
        for role in ("query", "key", "value"):
            projection = getattr(free, f"{role[0]}_proj")
            for parameter, value in zip(
                projection.parameters(), role_matrix(layer, role), strict=True
            ):
                parameter.copy_(value)
        norms = ("query_norm", "key_norm")
        terms = (term.name for term in variant.terms)
        same = ("o_proj", "q_rope_proj", "k_rope_proj", *norms, *terms)
        for name in same:
            if getattr(free, name, None) is not None:
                getattr(free, name).load_state_dict(getattr(layer, name).state_dict())
    return free


@variant_values("label, causal", LINEAR, (True, False))
def test_every_variant_is_a_qkv_whose_weights_are_equal(label: str, causal: bool) -> None:
    """Where the value reads a rotated key, it is the un-rotated one: ``value_rope`` none."""
    scale = ScaleConfig(identity="none")
    layer, x = make_layer(label, causal=causal, value_rope="none", scale=scale), random_input(101)
    assert distance(unshare(layer)(x), layer(x)) < GATE


@pytest.mark.parametrize("label", ["Q-K=V", "Q=K-V", "Q=K=V", "Q=V", "Q-MQA"])
def test_the_gradient_of_a_shared_weight_is_the_sum_of_the_unshared(label: str) -> None:
    layer, x = make_layer(label), random_input(101)
    free = unshare(layer)
    for module in (layer, free):
        module(x).square().sum().backward()
    for source in layer.config.variant.projections:
        shared = getattr(layer, f"{source}_proj").weight.grad
        readers = layer.config.variant.sharing.readers(source)
        parts = [getattr(free, f"{role[0]}_proj").weight.grad for role in readers]
        assert distance(sum(parts), shared) < GATE


@pytest.mark.parametrize("base", ["Q-K=V", "Q-GQA-2", "Q-MQA", "I-K=V"])
def test_a_shared_key_and_value_is_latent_attention_with_selectors(base: str) -> None:
    """MLA whose matrices pick each head's block of the latent: what stock engines are given."""
    tied = make_layer(f"{base}@decoupled-4@kv-norm@t2")
    width = tied.config.kv_width
    label = f"{'I-K=V' if base == 'I-K=V' else 'Q-K=V'}@decoupled-4@kv-norm@t2@latent-{width}"
    variant = dataclasses.replace(parse_variant(label), num_kv_heads=tied.config.num_kv_heads)
    latent = Attention(dataclasses.replace(tied.config, variant=variant)).double()
    selectors = {f"latent.{role}.weight": torch.eye(width).double() for role in ("key", "value")}
    latent.load_state_dict({**tied.state_dict(), **selectors})
    x = random_input(223)
    assert distance(latent(x), tied(x)) < GATE


def scores_of(layer: Attention, x: Tensor) -> Tensor:
    """The scores before the softmax."""
    layout = Layout(new_tokens=TOKENS)
    return layer.core.multiply(layer.score(layer.read(x, layout), layout)).detach()


def find_asymmetry(label: str) -> float:
    """That of bidirectional scores."""
    scores = scores_of(make_layer(label, causal=False), random_input(131))
    return distance(scores.mT, scores)


@pytest.mark.parametrize("label", ["Q=K=V", "Q=K-V", "Q=K-V@rotary", "I-I-V"])
def test_symmetric_variants_have_symmetric_scores(label: str) -> None:
    assert find_asymmetry(label) < GATE


@pytest.mark.parametrize("label", ["QKV", "Q-K=V", "I-K=V", "Q[map]=K=V"])
def test_what_breaks_the_symmetry(label: str) -> None:
    assert find_asymmetry(label) > 0.1


# A decay is causal, and no pair is seen from both sides.
@pytest.mark.parametrize("term", [term for term in TERMS if term.name != "decay"], ids=str)
def test_terms_keep_the_symmetry_as_their_entries_say(term: TermEntry) -> None:
    asymmetry = find_asymmetry(TERM_LABELS[term.name])
    assert asymmetry < GATE if term.is_symmetric else asymmetry > 0.1


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    for label in ("Q=K=V@rotary", "QKV@rotary", "Q-I-I@rotary"):
        layer, x = make_layer(label), random_input(131)
        near = torch.arange(TOKENS)[None]
        assert distance(layer(x, positions=near + 1000), layer(x)) < 1e3 * GATE


def test_the_uncorrected_rotated_value_is_not_translation_invariant() -> None:
    with pytest.warns(UserWarning, match="value_rope 'rotated' gives outputs that change when"):
        layer = make_layer("Q-K=V@rotary", value_rope="rotated")
    x = random_input(131)
    assert distance(layer(x, positions=torch.arange(TOKENS)[None] + 1), layer(x)) > 0.1


def test_the_bias_of_a_separate_key_cancels_but_moves_a_shared_value() -> None:
    x = random_input(131)
    for label, moves in (("QKV", False), ("Q-K=V", True), ("Q=K-V", True)):
        layer = make_layer(label)
        before = layer(x)
        with torch.no_grad():
            dict(layer.named_parameters())["k_proj.bias"].add_(torch.arange(D_MODEL) / D_MODEL)
        assert (distance(layer(x), before) > 1e-3) is moves
