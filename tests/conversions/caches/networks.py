"""Small networks with rotated grouped heads, and texts for them."""

import torch
from torch import Tensor

from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.conversions.caches.conversion import Conversion, choose_network, convert_network
from qkvary.conversions.caches.layer_maps import LayerMaps, read_layer
from qkvary.conversions.catalog import load_method
from qkvary.nn.language_model import LanguageModel
from tests.contracts.variant_cases import randomize
from tests.small_networks import small_config

TOKENS = torch.randint(37, (6, 19), generator=torch.Generator().manual_seed(3))
"""Windows of a text."""


def make_config(
    variant: str = "GQA-2@rotary", *, heads: int = 6, bias: bool = False, fraction: float = 1.0
) -> LanguageModelConfig:
    """A network of two layers with heads of 8 channels."""
    return small_config(
        variant,
        d_model=24,
        num_heads=heads,
        head_dim=None if heads == 3 else 8,
        bias=bias,
        out_bias=bias,
        rotary_fraction=fraction,
        block=BlockConfig(d_ff=31, activation="swiglu", norm="rmsnorm", bias=False, norm_eps=1e-5),
        vocabulary=37,
        max_tokens=64,
    )


def make_network(config: LanguageModelConfig, seed: int = 5) -> LanguageModel:
    """The network in float64, with scores of a deviation of about 1."""
    network = LanguageModel(config).double().eval()
    randomize(network, seed)
    return network


def convert(network: LanguageModel, method: str, *numbers: int | None) -> Conversion:
    """Convert a network to so many numbers of a token in each layer."""
    module = load_method(method)
    sizes = numbers * network.config.num_layers if len(numbers) == 1 else numbers
    config = choose_network(network.config, module, sizes)
    return convert_network(network, config, module, TOKENS)


def read(network: LanguageModel, inputs: Tensor, layer: int = 0) -> LayerMaps:
    """The matrices of a layer, with the moment of some inputs."""
    rows = torch.nn.functional.pad(inputs, (0, 1), value=1.0)
    return read_layer(network.stack.layers[layer].attention, rows.T @ rows / len(rows))


def copy_heads(network: LanguageModel, role: str, *, groups: int) -> None:
    """Make KV heads copies of one another, ``groups`` of them in a row."""
    for block in network.stack.layers:
        config = block.attention.config
        weight = block.attention.get_parameter(f"{role}_proj.weight").data
        heads = weight.unflatten(0, (config.num_kv_heads // groups, groups, -1))
        heads.copy_(heads[:, :1].expand_as(heads).clone())


def reduce_rank(network: LanguageModel, role: str, rank: int) -> None:
    """Give the projection of a role a rank."""
    for block in network.stack.layers:
        weight = block.attention.get_parameter(f"{role}_proj.weight").data
        left, values, right = torch.linalg.svd(weight, full_matrices=False)
        weight.copy_(left[:, :rank] * values[:rank] @ right[:rank])


def logits(network: LanguageModel) -> Tensor:
    """The logits of the text."""
    with torch.no_grad():
        return network(TOKENS)
