"""Projections, weights and caches of the published networks that the package knows."""

import pytest

from qkvary.arch.blocks import ProjectedAttention
from qkvary.arch.families.sizes import load_size, published_configs
from qkvary.arch.models import Model
from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.parameters import model_parameters

OTHERS = {
    *("gemma-4-31b", "gemma-4-12b", "gemma-4-26b-a4b", "gemma-4-e2b", "gemma-4-e4b"),
    *("deepseek-v2-lite", "deepseek-v3", "deepseek-v3.2", "deepseek-v4-flash", "deepseek-v4-pro"),
    *("a.x-k1", "glm-5", "kimi-k2", "minicpm3-4b", "youtu-2b"),
    *("jamba-v0.1", "kimi-linear-48b-a3b", "lfm3-1.7b", "olmo-hybrid-7b"),
    *("qwen3-next-80b-a3b", "qwen3.5-35b-a3b"),
}
"""Networks with layers that share a projection, read another layer's cache, or have a latent or a
state."""
SMALL = ("llama-3.2-1b", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen3-4b", "gemma-3-1b", "gemma-3-4b")
"""Networks for small devices, whose heads share keys and values."""


def has_three_projections(model: Model) -> bool:
    """Whether every layer of a network has a projection each for query, key and value."""
    return all(
        isinstance(layer.attention, ProjectedAttention)
        and layer.attention.reads_layer is None
        and len({*layer.attention.config.variant.sharing.roles.values()}) == 3
        for layer in model.layers
    )


def test_most_have_three_projections() -> None:
    names = list(published_configs())
    assert (len(names), len(OTHERS)) == (110, 21)
    assert {name for name in names if not has_three_projections(load_size(name))} == OTHERS


@pytest.mark.parametrize("name", SMALL)
def test_weights_of_4_bits_are_larger_than_a_short_cache(name: str) -> None:
    model = load_size(name)
    weights = model_parameters(model).total / 2
    assert model_cache_bytes(model, context=8_192, stored_as="bf16") < 0.61 * weights


@pytest.mark.parametrize("name", SMALL)
def test_a_long_cache_is_larger_than_weights_of_4_bits(name: str) -> None:
    model = load_size(name)
    weights = model_parameters(model).total / 2
    assert model_cache_bytes(model, context=131_072, stored_as="bf16") > 1.09 * weights
