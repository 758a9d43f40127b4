"""A study of one's own network: an encoder with a convolution over neighbouring tokens.

Run it with ``qkvary study docs/examples/own_network.py``.
"""

from dataclasses import dataclass

from torch import Tensor, nn

import qkvary as qk
from qkvary.arch.attention import AttentionConfig
from qkvary.arch.canonical import stored
from qkvary.arch.networks import BlockConfig, EncoderConfig
from qkvary.nn.encoder import Encoder
from qkvary.nn.initializer import Initializer
from qkvary.nn.layout import Layout
from qkvary.tasks.config import SequenceTaskConfig
from qkvary.training.config import OptimizerConfig, TrainingConfig


@stored("ConvolutionalEncoderConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionalEncoderConfig(EncoderConfig):
    """An encoder's sizes, and the width of the convolution."""

    width: int = 3
    """Tokens that the convolution reads."""

    def make(self, seed: int) -> "ConvolutionalEncoder":
        """Build the network; tasks call this in place of the encoder's own class."""
        return ConvolutionalEncoder(self, seed=seed)


class ConvolutionalEncoder(Encoder):
    """Embedded tokens go through ``x + convolution(x)`` before the blocks read them."""

    def __init__(self, config: ConvolutionalEncoderConfig, *, seed: int) -> None:
        super().__init__(config, seed=seed)
        channels = config.d_model
        self.mix = nn.Conv1d(channels, channels, config.width, padding="same", groups=channels)
        initializer = Initializer(seed, "mix")
        initializer.weight("weight", self.mix.weight, config.init, 0.1)
        initializer.bias("bias", self.mix.bias, config.init, config.width)

    def _embed(self, tokens: Tensor, layout: Layout) -> Tensor:
        x = super()._embed(tokens, layout)
        return x + self.mix(x.mT).mT


STUDY = qk.Study(
    name="own-network",
    question="Does sharing cost less where tokens have met their neighbours already?",
    description="Swapping the halves of 8 digits, 60 steps.",
    settings=tuple(
        qk.Setting(
            name=name,
            task=SequenceTaskConfig(name="swap", length=8, train_examples=2_000),
            network=kind(
                attention=AttentionConfig(d_model=16, num_heads=2),
                block=BlockConfig(d_ff=32),
                num_layers=1,
                vocabulary=10,
                classes=10,
                max_tokens=8,
            ),
            training=TrainingConfig(
                steps=60,
                batch_size=32,
                optimizer=OptimizerConfig(learning_rate=3e-3),
                evaluate_every=20,
            ),
        )
        for name, kind in (("plain", EncoderConfig), ("mixed", ConvolutionalEncoderConfig))
    ),
    variants=("QKV", "Q-K=V"),
    seeds=(0, 1),
)
