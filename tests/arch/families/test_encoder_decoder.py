"""T5 and Whisper: published models, with the arithmetic written out.

Cache bytes are those of 16-bit numbers, of the decoder's own tokens and of the encoder's output.
"""

from qkvary.arch.blocks import ProjectedAttention
from qkvary.arch.labels import format_label, parse_variant
from qkvary.arch.models import Encoder, Model
from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.parameters import model_parameters
from tests.arch.families.config_files import read, read_without


def encoder(model: Model) -> Encoder:
    assert model.encoder is not None
    return model.encoder


def total(model: Model) -> int:
    return model_parameters(model).total


def test_t5_small() -> None:
    model = read("t5-small")
    # 6 layers, keys and values, 8 heads of 64 channels, 2 bytes; once for the decoder's tokens,
    # once for the encoder's.
    token = 6 * 2 * 8 * 64 * 2
    assert token == 12_288
    for own, seen in ((1, 1), (100, 500), (512, 512)):
        found = model_cache_bytes(model, context=own, encoder_tokens=seen)
        assert found == (own + seen) * token
    assert model_cache_bytes(model, context=512, encoder_tokens=512) == 12_582_912
    attention, dense = 4 * 512 * 512, 2 * 512 * 2048
    stacks = 6 * (attention + dense + 2 * 512) + 6 * (2 * attention + dense + 3 * 512)
    # Each stack has a norm at its end and one table of relative positions.
    assert total(model) == 32128 * 512 + stacks + 2 * 512 + 2 * 32 * 8 == 60_506_624
    assert model_parameters(model).biases == 0
    assert (model.max_tokens, encoder(model).tokens) == (None, None)


def test_t5_keeps_relative_positions_in_the_first_layer_of_a_stack() -> None:
    model = read("t5-small", relative_attention_num_buckets=48)
    for layers in (model.layers, encoder(model).layers):
        attentions = [layer.attention for layer in layers]
        assert all(isinstance(attention, ProjectedAttention) for attention in attentions)
        found = [getattr(attention, "entries", None) for attention in attentions]
        assert found == [48 * 8, 0, 0, 0, 0, 0]
    plain = read_without("t5-small", "relative_attention_num_buckets")
    assert total(model) - total(plain) == 2 * 16 * 8


def test_t5_of_unequal_stacks_and_heads() -> None:
    """As in T5-11B, whose heads together are wider than the model."""
    model = read("t5-small", num_decoder_layers=2, d_kv=128, num_heads=32)
    assert (len(model.layers), len(encoder(model).layers)) == (2, 6)
    assert model_cache_bytes(model, context=3, encoder_tokens=5) == 8 * 2 * 2 * 32 * 128 * 2
    assert len(read_without("t5-small", "num_decoder_layers").layers) == 6


def test_whisper_tiny_always_hears_1500_tokens() -> None:
    model = read("whisper-tiny")
    # 4 layers, keys and values, 6 heads of 64 channels, 2 bytes.
    token = 4 * 2 * 384 * 2
    assert model_cache_bytes(model, context=448) == (448 + 1500) * token == 11_968_512
    assert model_cache_bytes(model, context=1, encoder_tokens=9) == (1 + 1500) * token
    # A bias on queries, values and the output, none on keys.
    attention = 4 * 384 * 384 + 3 * 384
    dense, norm = 2 * 384 * 1536 + 1536 + 384, 2 * 384
    stem = (3 * 80 * 384 + 384) + (3 * 384 * 384 + 384)
    stacks = 4 * (attention + dense + 2 * norm) + 4 * (2 * attention + dense + 3 * norm)
    tables = 51865 * 384 + 448 * 384 + 1500 * 384
    assert total(model) == tables + stem + stacks + 2 * norm == 37_760_640
    counted = model_parameters(model)
    assert (counted.positions, counted.other, counted.head) == (1948 * 384, stem, 0)
    assert model.max_tokens == 448


def test_other_variants_share_in_all_attention() -> None:
    whisper = read("whisper-tiny")
    tied = whisper.with_variant(parse_variant("Q-K=V"))
    assert model_cache_bytes(tied, context=100) * 2 == model_cache_bytes(whisper, context=100)
    # A key and value in one has the bias that the value's projection had.
    assert total(whisper) - total(tied) == (4 + 4 + 4) * 384 * 384
    single = read("t5-small").with_variant(parse_variant("Q-MQA"))
    assert model_cache_bytes(single, context=7, encoder_tokens=11) == 18 * 6 * 64 * 2
    attentions = [encoder(single).layers[0].attention, single.layers[0].cross]
    labels = [
        format_label(attention.config.variant)
        for attention in attentions
        if isinstance(attention, ProjectedAttention)
    ]
    assert labels == ["Q-MQA", "Q-MQA"]
