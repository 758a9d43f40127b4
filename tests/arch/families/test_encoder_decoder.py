"""T5 and Whisper: published models, with the arithmetic written out.

Cache bytes are those of 16-bit numbers, of the decoder's own tokens and of the encoder's output.
"""

from qkvary.arch.blocks import ProjectedAttention
from qkvary.arch.labels import format_label, parse_variant
from qkvary.arch.models import Model
from qkvary.costs.cache import model_cache_bytes
from qkvary.costs.parameters import model_parameters
from tests.arch.families.config_files import read


def total(model: Model) -> int:
    return model_parameters(model).total


def test_other_variants_share_in_all_attention() -> None:
    whisper = read("whisper-tiny")
    tied = whisper.with_variant(parse_variant("Q-K=V"))
    assert model_cache_bytes(tied, context=100) * 2 == model_cache_bytes(whisper, context=100)
    # A key and value in one has the bias that the value's projection had.
    assert total(whisper) - total(tied) == (4 + 4 + 4) * 384 * 384
    single = read("t5-small").with_variant(parse_variant("Q-MQA"))
    assert model_cache_bytes(single, context=7, encoder_tokens=11) == 18 * 6 * 64 * 2
    assert single.encoder is not None
    for attention in (single.encoder.layers[0].attention, single.layers[0].cross):
        assert isinstance(attention, ProjectedAttention)
        assert format_label(attention.config.variant) == "Q-MQA"
