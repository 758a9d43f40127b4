"""Gemma 1 to 4: published models, with the arithmetic written out.

Cache bytes are those of 16-bit numbers; of a window of w tokens the last w - 1 are kept.
"""

import pytest

from qkvary.arch.blocks import FeedForward, ProjectedAttention
from qkvary.arch.families.attention_fields import MOST_KINDS
from qkvary.arch.families.table import read_model
from qkvary.arch.models import Model, count_kinds
from qkvary.costs.cache import layerwise_cache_bytes, model_cache_bytes
from tests.arch.families.config_files import load, read, read_without

TEXT_NOTE = "only the language model is counted, not a vision or audio tower"
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


def test_gemma_3_without_what_published_files_leave_out() -> None:
    sizes = ("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")
    model = read_without("gemma-3-270m", *sizes, "layer_types", "sliding_window")
    config = attention(model).config
    assert (config.num_heads, config.num_kv_heads, config.size_per_head) == (8, 4, 256)
    assert model.vocabulary == 262_208
    assert windows(model) == ([4096] * 5 + [None]) * 3


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


def test_gemma_4_without_what_may_be_left_out() -> None:
    saved = read("gemma-4-31b")
    assert read_text_without("gemma-4-31b", "layer_types").layers == saved.layers
    # The last layer is global whatever is said.
    local = read_text("gemma-4-31b", layer_types=[LOCAL] * 60)
    assert windows(local) == [1024] * 59 + [None]
    short = read_text_without("gemma-4-31b", "global_head_dim", "rope_parameters", "sliding_window")
    assert attention(short, 5).config == attention(saved, 5).config
    assert attention(short, 0).config.variant.window == 512


@pytest.mark.parametrize(
    ("rotation", "fraction"),
    [
        ({"rope_type": "proportional", "partial_rotary_factor": 0.5}, 0.5),
        ({"rope_type": "proportional"}, 1.0),
        ({"partial_rotary_factor": 0.25}, 0.25),
        ({"rope_type": "default", "partial_rotary_factor": 0.25}, 1.0),
        ({}, 1.0),
    ],
)
def test_gemma_4_rotates_what_its_file_says(rotation: dict[str, object], fraction: float) -> None:
    model = read_text("gemma-4-31b", rope_parameters={GLOBAL: rotation})
    assert attention(model, 5).config.position.rotary_fraction == fraction


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
    with pytest.raises(
        ValueError, match="expected at most 100 different kinds of layers, got 2,000"
    ):
        widen(2000)
