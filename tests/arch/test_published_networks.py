"""The papers' networks have the papers' sizes."""

import pytest

from qkvary.arch.named_networks import gpt_124m, gpt_300m, gpt_1200m
from qkvary.arch.networks import LanguageModelConfig


@pytest.mark.parametrize(
    ("network", "sizes"),
    [
        (gpt_300m(), (20, 1024, 16, 64, 4096, 2048)),
        (gpt_1200m(), (22, 2048, 32, 64, 8192, 2048)),
        (gpt_124m(), (12, 768, 12, 64, 3072, 1024)),
        (gpt_124m(d_model=744), (12, 744, 12, 62, 2976, 1024)),
        (gpt_124m(d_ff=2688), (12, 768, 12, 64, 2688, 1024)),
    ],
)
def test_sizes(network: LanguageModelConfig, sizes: tuple[int, ...]) -> None:
    layer = network.layers[0]
    found = (network.num_layers, layer.d_model, layer.num_heads, layer.size_per_head)
    assert (*found, network.block.d_ff, network.max_tokens) == sizes
    assert network.vocabulary == 50_304
    assert network.tied_head
    assert layer.causal


def test_biases_are_those_of_the_public_codes() -> None:
    assert gpt_300m().layers[0].bias
    assert gpt_300m().block.bias
    assert not gpt_124m().layers[0].bias
    assert not gpt_124m().layers[0].out_bias
    assert not gpt_124m().block.bias
