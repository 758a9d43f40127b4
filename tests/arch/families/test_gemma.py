"""Gemma 1 to 4: published models, with the arithmetic written out.

Cache bytes are those of 16-bit numbers; of a window of w tokens the last w - 1 are kept.
"""

import pytest

from qkvary.arch.blocks import Experts, FeedForward, ProjectedAttention
from qkvary.arch.families.attention_fields import MOST_KINDS
from qkvary.arch.families.table import read_model
from qkvary.arch.labels import format_label
from qkvary.arch.models import Model, count_kinds
from qkvary.costs.cache import layerwise_cache_bytes, model_cache_bytes
from qkvary.costs.exact_savings import apply_saving, find_savings
from qkvary.costs.formats import parse_format
from qkvary.costs.parameters import active_parameters, model_parameters
from tests.arch.families.config_files import load, read, read_without

TEXT_NOTE = "counts the language model only: a vision or audio tower is not counted"
LOCAL, GLOBAL = "sliding_attention", "full_attention"


def load_text(name: str) -> dict[str, object]:
    text = load(name)["text_config"]
    assert isinstance(text, dict)
    return text


def read_text(name: str, **changes: object) -> Model:
    """The model of a file of several modalities, with fields of its text replaced."""
    return read(name, text_config={**load_text(name), **changes})


def read_text_without(name: str, *fields: str) -> Model:
    text = load_text(name)
    return read(name, text_config={key: text[key] for key in text if key not in fields})


def attention(model: Model, layer: int = 0) -> ProjectedAttention:
    found = model.layers[layer].attention
    assert isinstance(found, ProjectedAttention)
    return found


def windows(model: Model) -> list[int | None]:
    return [attention(model, index).config.variant.window for index in range(len(model.layers))]


def total(model: Model) -> int:
    return model_parameters(model).total


def test_gemma_2_27b_sees_everything_in_every_second_layer() -> None:
    model = read("gemma-2-27b")
    assert windows(model) == [4096, None] * 23
    # Keys and values, 16 KV heads of 128 channels, 2 bytes: 8 KiB a token and layer.
    token = 2 * 16 * 128 * 2
    assert token == 8192
    assert model_cache_bytes(model, context=1000) == 46 * 1000 * token
    expected = 23 * 4095 * token + 23 * 8192 * token
    assert model_cache_bytes(model, context=8192) == expected == 2_315_067_392
    layer = 2 * 4608 * 32 * 128 + 2 * 4608 * 16 * 128 + 3 * 4608 * 36864 + 4 * 4608
    assert total(model) == 256000 * 4608 + 46 * layer + 4608 == 27_227_128_320
    changed = read("gemma-2-27b", layer_types=[GLOBAL] * 45 + [LOCAL])
    assert windows(changed) == [None] * 45 + [4096]
    assert windows(read_without("gemma-2-27b", "sliding_window")) == [4096, None] * 23


def test_gemma_3_without_what_published_files_leave_out() -> None:
    sizes = ("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    model = read_without("gemma-3-270m", *sizes, "layer_types", "sliding_window")
    config = attention(model).config
    assert (config.num_heads, config.num_kv_heads, config.size_per_head) == (8, 4, 256)
    assert model.vocabulary == 262_208
    assert windows(model) == ([4096] * 5 + [None]) * 3
    older = {**load("gemma-3-270m"), "layer_types": None, "sliding_window_pattern": 4}
    assert windows(read("gemma-3-270m", **older)) == ([512] * 3 + [None]) * 4 + [512] * 2
    nested = {"full_attention": {"rope_theta": 5.0}, "sliding_attention": {"rope_theta": 7.0}}
    turned = read("gemma-3-270m", rope_parameters=nested)
    assert attention(turned, 5).config.position.rotary_base == 5.0
    assert attention(turned, 0).config.position.rotary_base == 7.0


def test_gemma_4_31b() -> None:
    model = read("gemma-4-31b")
    assert windows(model) == ([1024] * 5 + [None]) * 10
    # 50 local layers: keys and values, 16 KV heads of 256 channels, 2 bytes.
    local = 2 * 16 * 256 * 2
    # 10 global ones: keys and values, 4 KV heads of 512 channels, 2 bytes.
    everywhere = 2 * 4 * 512 * 2
    assert (local, everywhere) == (16_384, 8192)
    for context in (1, 1023, 1024, 32_768, 262_144):
        expected = 50 * min(context, 1023) * local + 10 * context * everywhere
        assert model_cache_bytes(model, context=context) == expected
    # 799 MiB of windows, 20 GiB of the rest.
    assert model_cache_bytes(model, context=262_144) == 838_041_600 + 21_474_836_480
    assert (model.max_tokens, model.vocabulary) == (262_144, 262_144)
    assert model.notes == (
        (
            "keys and values of global layers follow from one tensor; counted as engines store "
            "them, apart"
        ),
        TEXT_NOTE,
    )


def test_gemma_4_31b_saves_half_of_its_global_layers_exactly() -> None:
    """Of 512 channels 128 are rotated: the value and they are 640 instead of 1024 channels."""
    model = read("gemma-4-31b")
    config = attention(model, 5).config
    assert format_label(config.variant) == "Q-GQA-4@rotary"
    assert config.position.rotary_dim(config.size_per_head) == 128
    assert config.position.value_rope == "none"
    assert format_label(attention(model).config.variant) == "GQA-16@rotary@w1024"
    assert attention(model).config.position.rotary_fraction == 1.0
    found = find_savings(model, context=32_768, stored_as=parse_format("bf16")).savings
    of_global = {one.method: one for one in found if one.layers == tuple(range(5, 60, 6))}
    now = 10 * 32_768 * 4 * 1024 * 2
    sliced, turned = of_global["value and rotated slice"], of_global["rotate when read"]
    assert (sliced.bytes_now, sliced.bytes_then) == (now, 10 * 32_768 * 4 * 640 * 2)
    assert (turned.bytes_now, turned.bytes_then) == (now, 10 * 32_768 * 4 * 512 * 2)
    assert (sliced.share_of_layers, turned.share_of_layers) == (0.375, 0.5)
    assert {sliced.certainty, turned.certainty} == {"exact"}
    needed = apply_saving(model, "rotate when read")
    assert needed is not None
    saved = model_cache_bytes(model, context=32_768) - model_cache_bytes(needed, context=32_768)
    assert saved == now // 2 == 1_342_177_280


def test_gemma_4_26b_has_experts_beside_its_dense_networks() -> None:
    """25.2 billion parameters, 3.8 of them active, by its model card."""
    model = read("gemma-4-26b-a4b")
    # 25 local layers of 8 KV heads of 256 channels, 5 global ones of 2 KV heads of 512.
    expected = 25 * 1023 * 2 * 8 * 256 * 2 + 5 * 32_768 * 2 * 2 * 512 * 2
    assert model_cache_bytes(model, context=32_768) == expected == 880_599_040
    expert = 3 * 2816 * 704
    # The router has a matrix, a gain per channel and one per expert.
    experts = 128 * expert + 2816 * 128 + 2816 + 128
    local = 2 * 2816 * 16 * 256 + 2 * 2816 * 8 * 256 + 2 * 256
    everywhere = 2 * 2816 * 16 * 512 + 2816 * 2 * 512 + 2 * 512
    each = 3 * 2816 * 2112 + experts + 7 * 2816
    assert total(model) == 262144 * 2816 + 25 * local + 5 * everywhere + 30 * each + 2816
    assert total(model) == 25_233_141_760
    assert active_parameters(model) == total(model) - 30 * 120 * expert == 3_822_530_560
    dense, mixture = model.layers[0].feed_forward
    assert isinstance(dense, FeedForward)
    assert isinstance(mixture, Experts)
    assert (mixture.count, mixture.active) == (128, 8)


def test_gemma_4_e2b_keeps_15_of_35_layers() -> None:
    model = read("gemma-4-e2b")
    assert windows(model) == ([512] * 4 + [None]) * 7
    reads = [attention(model, index).reads_layer for index in range(35)]
    # The last local layer before the shared ones is 13, the last global one 14.
    assert reads == [None] * 15 + [13, 13, 13, 13, 14] * 4
    # 12 local layers of one KV head of 256 channels, 3 global ones of 512.
    expected = 12 * 511 * 2 * 256 * 2 + 3 * 32_768 * 2 * 512 * 2
    assert model_cache_bytes(model, context=32_768) == expected == 207_605_760
    layers = layerwise_cache_bytes(model, context=32_768)
    assert layers[15:] == [0] * 20
    # Shared layers are twice as wide; queries are normalised, keys only where they are made.
    widths = [layer.feed_forward[0] for layer in model.layers]
    assert [part.d_ff for part in widths if isinstance(part, FeedForward)] == (
        [6144] * 15 + [2 * 6144] * 20
    )
    assert [len(attention(model, index).norms) for index in (0, 14, 15)] == [2, 2, 1]
    assert model.notes == (TEXT_NOTE,)


def test_gemma_4_e2b_has_an_input_for_every_layer() -> None:
    """The 2.3 billion that its model card calls effective are those without the second table."""
    model = read("gemma-4-e2b")
    own = [1536 * (256 + 256) * kind for kind in (1, 2)]
    attend = [2 * 1536 * 8 * 256 * kind for kind in (1, 2)]
    norms = [2 * 256 * kind for kind in (1, 2)]
    kept = 12 * (own[0] + norms[0]) + 3 * (own[1] + norms[1])
    shared = 16 * 256 + 4 * 512
    dense = 3 * 1536 * 6144 * (15 + 2 * 20)
    inputs = 35 * (2 * 1536 * 256 + 1536) + 1536 * 35 * 256 + 256
    layers = 28 * attend[0] + 7 * attend[1] + kept + shared + dense + 35 * 4 * 1536 + inputs
    second = 262144 * 35 * 256
    assert total(model) == 262144 * 1536 + layers + 1536 + second == 4_628_569_344
    assert total(model) - second == 2_279_759_104
    plain = read_text("gemma-4-e2b", hidden_size_per_layer_input=0)
    assert total(model) - total(plain) == second + inputs
    assert total(read_text("gemma-4-e2b", hidden_size_per_layer_input=None)) == total(plain)
    assert read_text_without("gemma-4-e2b", "hidden_size_per_layer_input").layers == model.layers


def test_gemma_4_as_transformers_saves_it() -> None:
    """What only global layers have is listed under their numbers."""
    overrides = {
        str(index): {"head_dim": 512, "num_key_value_heads": 4} for index in range(5, 60, 6)
    }
    text = load_text("gemma-4-31b")
    for field in ("global_head_dim", "num_global_key_value_heads"):
        del text[field]
    saved = read("gemma-4-31b", text_config={**text, "per_layer_config": overrides})
    assert saved.layers == read("gemma-4-31b").layers
    assert read_text_without("gemma-4-31b", "layer_types").layers == saved.layers
    # The last layer is global whatever is said.
    local = read_text("gemma-4-31b", layer_types=[LOCAL] * 59 + [LOCAL])
    assert windows(local) == [1024] * 59 + [None]
    short = read_text_without("gemma-4-31b", "global_head_dim", "rope_parameters", "sliding_window")
    assert attention(short, 5).config == attention(saved, 5).config
    assert attention(short, 0).config.variant.window == 512


def test_gemma_4_rotates_what_its_file_says() -> None:
    def fraction(**of_global: object) -> float:
        model = read_text("gemma-4-31b", rope_parameters={GLOBAL: of_global})
        return attention(model, 5).config.position.rotary_fraction

    assert fraction(rope_type="proportional", partial_rotary_factor=0.5) == 0.5
    assert fraction(rope_type="proportional") == 1.0
    assert fraction(partial_rotary_factor=0.25) == 0.25
    assert fraction(rope_type="default", partial_rotary_factor=0.25) == 1.0
    assert fraction() == 1.0
    assert attention(read_text_without("gemma-4-31b", "rope_parameters"), 5).config.position == (
        attention(read("gemma-4-31b"), 5).config.position
    )


def test_layers_may_all_differ_up_to_a_number() -> None:
    """Each kind is counted apart: thousands of them would take minutes."""

    def widen(layers: int) -> Model:
        overrides = {str(index): {"head_dim": 32 + 2 * index} for index in range(layers)}
        small = {
            "model_type": "gemma4_text",
            "vocab_size": 97,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": layers,
            "layer_types": ["full_attention"] * layers,
            "per_layer_config": overrides,
        }
        return read_model(small, "wide")

    assert len(count_kinds(widen(MOST_KINDS).layers)) == MOST_KINDS
    with pytest.raises(ValueError, match="expected layers of at most 100 kinds, got 2,000"):
        widen(2000)
