"""The encoder of the synthetic experiments, a network that decodes nothing."""

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.labels import as_variant
from qkvary.arch.networks import BlockConfig, EncoderConfig
from qkvary.arch.variants import Variant


def synthetic_encoder(variant: Variant | str = "QKV") -> EncoderConfig:
    """Return the encoder of the synthetic experiments at d 64, 2 layers and 2 heads.

    Source: the public code of "Key-Value Transformer".
    """
    return EncoderConfig(
        attention=AttentionConfig(d_model=64, num_heads=2, variant=as_variant(variant)),
        block=BlockConfig(d_ff=128, activation="relu", norm_placement="post"),
        num_layers=2,
        vocabulary=10,
        max_tokens=64,
        classes=10,
    )
