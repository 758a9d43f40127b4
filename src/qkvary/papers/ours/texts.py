"""The network that the studies use to classify labelled texts. Torch-free."""

from qkvary.arch.attention import AttentionConfig, Initialization
from qkvary.arch.networks import BlockConfig, EncoderConfig
from qkvary.tasks.config import TEXT_VOCABULARY


def text_network(
    *, classes: int, context: int, d_model: int = 32, num_layers: int = 2, num_heads: int = 4
) -> EncoderConfig:
    """Return a pre-norm encoder of bytes with a head on the mean of the last hidden states.

    Embeddings and positions are both drawn from N(0, 1). If embeddings were initialised like the
    weights of a linear layer on one-hot tokens, they would be too small compared with positions.
    """
    return EncoderConfig(
        attention=AttentionConfig(d_model=d_model, num_heads=num_heads),
        block=BlockConfig(d_ff=2 * d_model),
        num_layers=num_layers,
        vocabulary=TEXT_VOCABULARY,
        max_tokens=context,
        classes=classes,
        positions="learned",
        pooling="mean",
        init=Initialization(embedding_std=1.0),
    )
