"""Llama and its descendants: published models, with the arithmetic written out.

Cache bytes are those of 16-bit numbers; of a window of w tokens the last w - 1 are kept.
"""

from qkvary.arch.blocks import Experts, FeedForward, ProjectedAttention
from qkvary.arch.models import Model
from qkvary.costs.cache import layerwise_cache_bytes
from qkvary.costs.parameters import model_parameters
from tests.arch.families.config_files import read, read_without


def attention(model: Model, layer: int = 0) -> ProjectedAttention:
    found = model.layers[layer].attention
    assert isinstance(found, ProjectedAttention)
    return found


def windows(model: Model) -> list[int | None]:
    return [attention(model, index).config.variant.window for index in range(len(model.layers))]


def total(model: Model) -> int:
    return model_parameters(model).total


def test_qwen_windows_begin_behind_the_full_layers() -> None:
    on = {"use_sliding_window": True, "sliding_window": 1000, "max_window_layers": 20}
    model = read("qwen2.5-0.5b", **on)
    assert windows(model) == [None] * 20 + [1000] * 4
    # Keys and values, 2 KV heads of 64 channels, 2 bytes: 512 a token and layer.
    assert list(layerwise_cache_bytes(model, context=5000)) == [5000 * 512] * 20 + [999 * 512] * 4
    # 28 full layers are more than there are.
    assert windows(read("qwen2.5-0.5b", **{**on, "max_window_layers": None})) == [None] * 24
    assert windows(read("qwen2.5-0.5b", **{**on, "sliding_window": None})) == [None] * 24
    assert windows(read("qwen2.5-0.5b", **{**on, "use_sliding_window": False})) == [None] * 24
    kinds = ["sliding_attention"] * 3 + ["full_attention"] * 21
    assert windows(read("qwen2.5-0.5b", **on, layer_types=kinds)) == [1000] * 3 + [None] * 21


def test_dense_layers_among_experts() -> None:
    changed = read("qwen3-30b-a3b", decoder_sparse_step=2, mlp_only_layers=[1, 47, 99])
    dense = [isinstance(layer.feed_forward[0], FeedForward) for layer in changed.layers]
    assert dense == [index % 2 == 0 or index in {1, 47} for index in range(48)]
    # Files whose layers all have experts need no width of dense ones.
    assert total(read_without("qwen3-30b-a3b", "intermediate_size")) == 30_532_122_624
    assert isinstance(read("qwen3-30b-a3b").layers[7].feed_forward[0], Experts)
    none = read("qwen3-30b-a3b", mlp_only_layers=list(range(48)), num_experts=None)
    assert all(isinstance(layer.feed_forward[0], FeedForward) for layer in none.layers)
