"""What network configurations refuse, and their short form."""

import dataclasses

import pytest

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig, EncoderConfig
from tests.small_networks import small_config

LAYER = AttentionConfig(d_model=6, num_heads=2)


def make_encoder(**fields: object) -> EncoderConfig:
    given: dict[str, object] = {
        "attention": LAYER,
        "block": BlockConfig(d_ff=5),
        "num_layers": 2,
        "vocabulary": 7,
        "max_tokens": 11,
        "classes": 3,
    }
    return EncoderConfig(**{**given, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_layers": 0}, "expected num_layers of EncoderConfig in 1 ... 2^40, got 0"),
        ({"vocabulary": 0}, "expected vocabulary of EncoderConfig in 1 ... 2^40, got 0"),
        ({"attention": (LAYER,) * 3}, "or one for each of the 2 layers, got 3"),
        ({"attention": (LAYER, AttentionConfig(d_model=8, num_heads=2))}, "expected attention lay"),
        ({"classes": 0}, "expected classes of EncoderConfig in 1 ... 2^40, got 0"),
    ],
)
def test_what_does_not_fit_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        make_encoder(**fields)
    assert message in str(caught.value)


def test_a_language_model_is_causal() -> None:
    config = small_config(d_model=6, num_heads=2)
    message = "expected causal layers in a language model, got a bidirectional layer"
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(config, attention=(config.layers[0], LAYER))


def test_a_variant_replaces_that_of_every_layer() -> None:
    variant = parse_variant("Q-K=V")
    other = dataclasses.replace(LAYER, bias=False)
    for attention in (LAYER, (LAYER, other)):
        found = make_encoder(attention=attention).with_variant(variant)
        assert [layer.variant for layer in found.layers] == [variant, variant]
        assert found.layers[1].bias is (attention is LAYER)


def test_one_more_norm_stands_behind_all_but_plain_post_norm_blocks() -> None:
    assert BlockConfig(d_ff=5).has_final_norm
    assert not BlockConfig(d_ff=5, norm_placement="post").has_final_norm
    assert BlockConfig(d_ff=5, norm_placement="post-final").has_final_norm
