"""Llama and its descendants: published models, with the arithmetic written out.

Cache bytes are those of 16-bit numbers; of a window of w tokens the last w - 1 are kept.
"""

from qkvary.arch.blocks import Experts, FeedForward, ProjectedAttention
from qkvary.arch.labels import format_label
from qkvary.arch.models import Model
from qkvary.costs.cache import layerwise_cache_bytes, model_cache_bytes
from qkvary.costs.parameters import active_parameters, model_parameters
from tests.arch.families.config_files import read, read_without


def attention(model: Model, layer: int = 0) -> ProjectedAttention:
    found = model.layers[layer].attention
    assert isinstance(found, ProjectedAttention)
    return found


def windows(model: Model) -> list[int | None]:
    return [attention(model, index).config.variant.window for index in range(len(model.layers))]


def cache_bytes(model: Model, context: int) -> int:
    return model_cache_bytes(model, context=context, stored_as="bf16")


def total(model: Model) -> int:
    return model_parameters(model).total


def test_llama_3_1_8b() -> None:
    model = read("llama-3.1-8b")
    # 32 layers, keys and values, 8 KV heads of 128 channels, 2 bytes: 128 KiB a token.
    assert 32 * 2 * 8 * 128 * 2 == 131_072 == 128 * 2**10
    assert cache_bytes(model, 1) == 131_072
    assert cache_bytes(model, 32_768) == 32_768 * 131_072 == 4 * 2**30
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert total(model) == 2 * 128256 * 4096 + 32 * layer + 4096 == 8_030_261_248
    assert model_parameters(model).biases == 0
    assert model.max_tokens == 131_072
    config = attention(model).config
    assert (config.position.rotary_base, config.position.rotary_fraction) == (500_000.0, 1.0)
    assert format_label(config.variant) == "GQA-8@rotary"


def test_llama_without_grouping_says_nothing_of_kv_heads() -> None:
    model = read_without("llama-3.1-8b", "num_key_value_heads", "head_dim")
    assert attention(model).config.variant.num_kv_heads is None
    assert attention(model).config.head_dim is None
    assert cache_bytes(model, 1) == 32 * 2 * 32 * 128 * 2


def test_llama_biases_and_head_sizes() -> None:
    plain = total(read("llama-3.1-8b"))
    assert total(read("llama-3.1-8b", attention_bias=True)) == plain + 32 * (2 * 4096 + 2 * 1024)
    assert total(read("llama-3.1-8b", mlp_bias=True)) == plain + 32 * (2 * 14336 + 4096)
    wide = read("llama-3.1-8b", head_dim=160)
    assert cache_bytes(wide, 1) == 32 * 2 * 8 * 160 * 2
    assert total(wide) == plain + 32 * 2 * 4096 * (32 + 8) * 32


def test_mistral_7b_keeps_its_window() -> None:
    model = read("mistral-7b")
    # 32 layers, keys and values, 8 KV heads of 128 channels, 2 bytes; at most 4,095 tokens.
    token = 32 * 2 * 8 * 128 * 2
    assert cache_bytes(model, 1000) == 1000 * token == 131_072_000
    assert cache_bytes(model, 4095) == 4095 * token
    assert cache_bytes(model, 32_768) == 4095 * token == 536_739_840
    assert total(model) == 7_241_732_096
    assert windows(model) == [4096] * 32


def test_mixtral_8x7b_passes_through_two_experts_of_eight() -> None:
    model = read("mixtral-8x7b")
    # Of the cache experts know nothing: as Mistral without its window.
    assert cache_bytes(model, 32_768) == 32_768 * (32 * 2 * 8 * 128 * 2) == 4 * 2**30
    expert = 3 * 4096 * 14336
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 8 * expert + 4096 * 8 + 2 * 4096
    assert total(model) == 2 * 32000 * 4096 + 32 * layer + 4096 == 46_702_792_704
    assert active_parameters(model) == 46_702_792_704 - 32 * 6 * expert == 12_879_925_248
    assert attention(model).config.position.rotary_base == 1_000_000.0


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


def test_qwen3_8b_normalises_its_heads() -> None:
    model = read("qwen3-8b")
    # 36 layers, keys and values, 8 KV heads of 128 channels, 2 bytes: 144 KiB a token.
    assert cache_bytes(model, 40_960) == 40_960 * (36 * 2 * 8 * 128 * 2) == 6_039_797_760
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288 + 2 * 4096 + 2 * 128
    assert total(model) == 2 * 151936 * 4096 + 36 * layer + 4096 == 8_190_735_360
    # The size of its heads is not that of its width.
    assert attention(read_without("qwen3-8b", "head_dim")).config.size_per_head == 128
    small = read("qwen3-8b", hidden_size=1024)
    assert cache_bytes(small, 1) == 36 * 2 * 8 * 128 * 2


def test_qwen3_30b_has_experts_in_every_layer() -> None:
    model = read("qwen3-30b-a3b")
    # 48 layers, keys and values, 4 KV heads of 128 channels, 2 bytes.
    assert cache_bytes(model, 32_768) == 32_768 * (48 * 2 * 4 * 128 * 2) == 3 * 2**30
    expert = 3 * 2048 * 768
    projections = 2 * 2048 * 4096 + 2 * 2048 * 512
    layer = projections + 128 * expert + 2048 * 128 + 2 * 2048 + 2 * 128
    assert total(model) == 2 * 151936 * 2048 + 48 * layer + 2048 == 30_532_122_624
    assert active_parameters(model) == total(model) - 48 * 120 * expert == 3_353_032_704


def test_dense_layers_among_experts() -> None:
    changed = read("qwen3-30b-a3b", decoder_sparse_step=2, mlp_only_layers=[1, 47, 99])
    dense = [isinstance(layer.feed_forward[0], FeedForward) for layer in changed.layers]
    assert dense == [index % 2 == 0 or index in {1, 47} for index in range(48)]
    # Files whose layers all have experts need no width of dense ones.
    assert total(read_without("qwen3-30b-a3b", "intermediate_size")) == 30_532_122_624
    assert isinstance(read("qwen3-30b-a3b").layers[7].feed_forward[0], Experts)
    none = read("qwen3-30b-a3b", mlp_only_layers=list(range(48)), num_experts=None)
    assert all(isinstance(layer.feed_forward[0], FeedForward) for layer in none.layers)
