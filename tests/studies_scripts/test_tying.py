"""A tied layer computes what the same network does whose keys and values are rounded to it."""

import copy

import pytest
import torch
from torch import Tensor

from qkvary.analysis.layers import LayerStatistics
from qkvary.analysis.observation import read_window
from qkvary.analysis.tying import Tie
from qkvary.arch.labels import format_label
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError
from tests.contracts.variant_cases import distance
from tests.conversions.networks import make_network
from tests.studies_scripts.loading import load_script

tie_layer = load_script("likeness-over-training", "tying").tie_layer

LABELS = ("QKV", "QKV@alibi", "GQA-2@w5", "(QKV)+")


def windows(network: LanguageModel, count: int = 9) -> list[Tensor]:
    draws = torch.Generator().manual_seed(1)
    shape = (count, network.config.max_tokens)
    return list(torch.randint(network.config.vocabulary, shape, generator=draws))


def observe(network: LanguageModel) -> list[LayerStatistics]:
    draws = torch.Generator().manual_seed(0)
    layers = [
        LayerStatistics(block.attention, number, 0)
        for number, block in enumerate(network.stack.blocks, start=1)
    ]
    for window in windows(network):
        for layer, reading in zip(layers, read_window(network, window, draws).layers, strict=True):
            layer.add(reading)
    return layers


def mean_of(layer: LayerStatistics) -> Tensor:
    return layer.moments.input_sum / layer.moments.tokens


@torch.no_grad()
def round_layer(
    network: LanguageModel, layer: int, ties: tuple[Tie, ...], mean: Tensor
) -> LanguageModel:
    """A copy with the same roles, whose k and v are B R [k, v] around the mean, head by head."""
    rounded = copy.deepcopy(network)
    attention = list(rounded.stack.blocks)[layer - 1].attention
    key, value = attention.projections["k"], attention.projections["v"]
    size = attention.config.size_per_head
    for head, tie in enumerate(ties):
        rows = slice(head * size, (head + 1) * size)
        old = torch.cat((key.weight[rows], value.weight[rows]))
        new = tie.writer @ tie.reader @ old
        shift = (old - new) @ mean
        key.weight[rows], value.weight[rows] = new[:size], new[size:]
        for projection, part in ((key, shift[:size]), (value, shift[size:])):
            assert projection.bias is not None
            projection.bias[rows] += part
    return rounded


@pytest.mark.parametrize("label", LABELS)
def test_logits_are_those_of_rounded_keys_and_values(label: str) -> None:
    network = make_network(label, bias=True)
    layers = observe(network)
    for number in (1, 2):
        ties, mean = layers[number - 1].ties(), mean_of(layers[number - 1])
        tied = tie_layer(network, number, ties, mean)
        expected = round_layer(network, number, ties, mean)
        tokens = torch.stack(windows(network, 2))
        assert distance(tied(tokens), expected(tokens)) < 1e-10
        assert distance(tied(tokens), network(tokens)) > 1e-3
        sharing = tied.config.layers[number - 1].variant.sharing
        assert sharing.key == sharing.value != sharing.query
        others = [one for index, one in enumerate(tied.config.layers) if index != number - 1]
        assert {format_label(one.variant) for one in others} == {label}


def test_projections_without_biases_stay_without() -> None:
    network = make_network("QKV@alibi")
    layers = observe(network)
    tied = tie_layer(network, 1, layers[0].ties(), mean_of(layers[0]))
    assert not any("k_proj.bias" in name for name in tied.state_dict())
    forecast = layers[0].result().fitted_forecast
    assert sum(one.forecast for one in layers[0].ties()) == pytest.approx(forecast, rel=1e-6)


def test_what_is_one_tensor_is_tied_without_a_change() -> None:
    network = make_network("QKV@alibi", bias=True)
    projections = next(iter(network.stack.blocks)).attention.projections
    turn = torch.randn(20, 20, generator=torch.Generator().manual_seed(2)).double()
    blocks = torch.block_diag(*[turn[at : at + 5, at : at + 5] for at in range(0, 20, 5)])
    with torch.no_grad():
        projections["v"].weight.copy_(blocks @ projections["k"].weight)
    (first, *_) = observe(network)
    tied = tie_layer(network, 1, first.ties(), mean_of(first))
    tokens = torch.stack(windows(network, 2))
    assert distance(tied(tokens), network(tokens)) < 1e-6


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("QKV@rotary", "expected keys that are not rotated in layer 1, got QKV@rotary"),
        ("Q-K=V", "expected full projections of its own for query, key and value in layer 1, got"),
        ("Q[residual]-K-V", "expected full projections of its own"),
    ],
)
def test_layers_that_cannot_be_tied_are_refused(label: str, message: str) -> None:
    network = make_network("QKV@alibi", bias=True)
    ties = observe(network)[0].ties()
    with pytest.raises(UsageError, match=message.replace("[", r"\[")):
        tie_layer(make_network(label, bias=True), 1, ties, torch.zeros(20).double())
