"""One window of text: inputs, scores and derivatives are those of the network itself."""

import dataclasses
import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from qkvary.analysis.moments import LayerMoments, scaled_queries
from qkvary.analysis.observation import check_layers, read_window
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.layout import Layout
from qkvary.nn.terms import content_scores
from tests.analysis.networks import draw_gains, make_network, make_windows

WINDOW = make_windows(3, 19)[0]
NORMED = ("GQA-2@rotary@qk-norm", "GQA-2@rotary@qk-norm-wide", "QKV@qk-norm@cap0.7")
CAPPED = ("GQA-2@rotary@cap0.7", "QKV@cap0.7", "GQA-2@rotary@w5@cap0.7")
LABELS = (
    *("QKV", "GQA-2", "QKV@rotary", "GQA-2@rotary", "QKV@alibi", "(Q=K-V)+", "QKV@w5"),
    *NORMED,
    *CAPPED,
)


@pytest.mark.parametrize("label", LABELS)
def test_loss_and_inputs_are_those_of_the_network(label: str) -> None:
    network = make_network(label, d_model=16, heads=4)
    reading = read_window(network, WINDOW, torch.Generator())
    expected = network(WINDOW[None, :-1], targets=WINDOW[None, 1:])
    assert reading.loss == pytest.approx(float(expected), rel=1e-6)
    inputs = network.embed(WINDOW[None], Layout(new_tokens=19))
    first = network.stack.blocks[0]
    assert torch.allclose(reading.layers[0].input, first.attention_input(inputs)[0])
    maps = network.attention_maps(WINDOW[None])[0]
    for block, layer, weights in zip(network.stack.blocks, reading.layers, maps, strict=True):
        assert torch.allclose(block.attention.core.weights(layer.scores)[0], weights)


def differentiate(network: LanguageModel, *weights: Tensor) -> tuple[Tensor, ...]:
    """The derivatives of the sampled loss by weights, with the draws of the seed 7."""
    draws = torch.Generator().manual_seed(7)
    shares = network(WINDOW[None])[0].float().softmax(dim=-1)
    drawn = torch.multinomial(shares, 1, generator=draws)
    for weight in weights:
        weight.requires_grad_()
    loss = F.cross_entropy(network(WINDOW[None])[0], drawn[:, 0], reduction="sum")
    found = torch.autograd.grad(loss, weights)
    for weight in weights:
        weight.requires_grad_(requires_grad=False)
    return found


@pytest.mark.parametrize("label", [*LABELS[:4], *CAPPED])
def test_derivatives_are_those_of_the_weights(label: str) -> None:
    """The derivative by W_K is the sum over tokens of that by the key times the input."""
    network = make_network(label, d_model=16, heads=4)
    reading = read_window(network, WINDOW, torch.Generator().manual_seed(7))
    for layer, block in zip(reading.layers, network.stack.blocks, strict=True):
        attention = block.attention
        expected = differentiate(network, attention.k_proj.weight, attention.v_proj.weight)
        gradients = layer.key_gradient, layer.value_gradient
        for gradient, by_weight in zip(gradients, expected, strict=True):
            found = (gradient.mT @ layer.input).flatten(0, 1)
            assert torch.allclose(found, by_weight, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("label", NORMED)
def test_keys_of_a_norm_are_read_after_it(label: str) -> None:
    """The derivative by the gain is the sum of that by the key times the key without its gain."""
    network = draw_gains(make_network(label, d_model=16, heads=4))
    reading = read_window(network, WINDOW, torch.Generator().manual_seed(7))
    for layer, block in zip(reading.layers, network.stack.blocks, strict=True):
        attention = block.attention
        assert attention.key_norm is not None
        assert attention.k_proj is not None
        projected = F.linear(layer.input, attention.k_proj.weight, attention.k_proj.bias)
        heads = projected.unflatten(-1, (len(layer.key), -1)).transpose(0, 1)
        squares = projected if "wide" in label else heads
        plain = heads / (squares.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
        gain = attention.key_norm.weight
        expected = plain * (gain.view(len(heads), 1, -1) if "wide" in label else gain)
        assert torch.allclose(layer.key, expected)
        value = F.linear(layer.input, attention.v_proj.weight, attention.v_proj.bias)
        assert torch.allclose(layer.value.transpose(0, 1).flatten(1), value)
        (by_gain,) = differentiate(network, gain)
        found = (layer.key_gradient * plain).sum(dim=1)
        assert torch.allclose(found.flatten() if "wide" in label else found.sum(dim=0), by_gain)


@pytest.mark.parametrize("label", ["QKV", "QKV@rotary", "QKV@w5@rotary", *NORMED[:2], *CAPPED])
def test_a_turned_query_is_the_slope_of_the_score_of_a_drawn_key(label: str) -> None:
    network = draw_gains(make_network(label, d_model=16, heads=4, bias=False))
    layer = read_window(network, WINDOW, torch.Generator()).layers[1]
    config = layer.attention.config
    queries = scaled_queries(layer, torch.Generator().manual_seed(3))
    key = layer.key[None].clone().requires_grad_()
    turned = key if layer.rotation is None else layer.rotation.rotate(key)
    scores = content_scores(layer.scores.query * layer.scores.scale, turned)[0]
    cap = config.variant.soft_cap
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    assert torch.allclose(scores, layer.scores.multiply()[0])
    window, drawn = config.variant.window, torch.Generator().manual_seed(3)
    shares = torch.rand(19, generator=drawn, dtype=torch.float64)
    for query in range(19):
        nearest = 0 if window is None else max(0, query - window + 1)
        met = nearest + int(shares[query] * (query - nearest + 1))
        for head in range(4):
            (slope,) = torch.autograd.grad(scores[head, query, met], [key], retain_graph=True)
            own = slope[0, head // (4 // config.num_kv_heads), met]
            assert torch.allclose(queries[head, query], own)


def test_the_network_is_as_before_even_after_an_error() -> None:
    network = make_network()
    expected = network(WINDOW[None])
    with pytest.raises(IndexError):
        read_window(network, torch.tensor([1, 99]), torch.Generator())
    assert all("forward" not in vars(block.attention) for block in network.stack.blocks)
    assert torch.equal(network(WINDOW[None]), expected)


@pytest.mark.parametrize(
    "label", ["Q=K-V@soft", "Q=K-V@diag-mean", "Q-K=V@decoupled-2", "Q[residual-gelu]-K-V"]
)
def test_other_layers_are_refused(label: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"got {label} in layer 1")):
        check_layers(make_network(label))


def test_layers_that_share_a_block_are_read_one_by_one() -> None:
    config = dataclasses.replace(make_network("QKV@alibi").config, shared_blocks=True, num_layers=3)
    network = LanguageModel(config).double().eval().requires_grad_(requires_grad=False)
    readings = read_window(network, WINDOW, torch.Generator()).layers
    maps = network.attention_maps(WINDOW[None])[0]
    for reading, weights in zip(readings, maps, strict=True):
        assert torch.allclose(reading.attention.core.weights(reading.scores)[0], weights)


def test_moments_are_sums_over_all_tokens() -> None:
    network = make_network("GQA-2", d_model=16, heads=4)
    attention, draws = network.stack.blocks[1].attention, torch.Generator()
    moments = LayerMoments(attention.config, torch.device("cpu"))
    readings = [read_window(network, one, draws).layers[1] for one in make_windows(1, 17, 11)]
    for reading in readings:
        moments.add(reading, draws)
    inputs = torch.cat([reading.input for reading in readings])
    plain = torch.cov(inputs.mT, correction=0)
    damped = plain + 1e-3 * plain.trace() / 16 * torch.eye(16, dtype=torch.float64)
    assert torch.allclose(moments.covariance(), damped, atol=1e-12)
    queries = torch.cat([reading.scores.query[0, 3] for reading in readings]) * 0.5
    expected = sum(torch.outer(query, query) for query in queries) / 28
    assert torch.allclose(moments.query_moments()[3], expected, atol=1e-12)
    key, value = (
        torch.cat([getattr(reading, f"{name}_gradient")[1] for reading in readings])
        for name in ("key", "value")
    )
    joint = torch.cat((key, value), dim=1)
    expected = sum(torch.outer(one, one) for one in joint) / 28
    assert torch.allclose(moments.curvature()[1], expected, atol=1e-12)
