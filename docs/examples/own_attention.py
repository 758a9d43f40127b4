"""A study of one's own attention: score terms, a core and a layer, each registered by a name.

Run it with ``qkvary study docs/examples/own_attention.py``.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

import qkvary as qk
from qkvary.arch.attention import AttentionConfig, Initialization
from qkvary.arch.networks import BlockConfig, EncoderConfig
from qkvary.nn.initializer import Initializer
from qkvary.nn.kernels import SoftmaxCore
from qkvary.nn.own import own
from qkvary.nn.terms import Scores, ScoreTerm
from qkvary.tasks.config import SequenceTaskConfig
from qkvary.training.config import OptimizerConfig, TrainingConfig


@own("head-temperature", "each head divides its scores by a learned temperature")
class HeadTemperature(ScoreTerm):
    """Scores are multiplied by ``exp(w)``, one learned w for each head."""

    version = "1"

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.weight = nn.Parameter(torch.empty(config.num_heads))

    def initialize(self, _: Initializer, __: Initialization, /) -> None:
        """Start with temperatures of 1."""
        nn.init.zeros_(self.weight)

    def forward(self, scores: Scores) -> Scores:
        """Multiply the scores."""
        gain = self.weight.exp()[:, None, None]
        return replace(scores, gain=gain if scores.gain is None else scores.gain * gain)


@own("query-key-norm", "query and key are normalised in each head")
class QueryKeyNorm(ScoreTerm):
    """Query and key of each head are divided by their root mean square, with a learned gain."""

    version = "1"

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.query = nn.RMSNorm(config.size_per_head)
        self.key = nn.RMSNorm(config.size_per_head)

    def forward(self, scores: Scores) -> Scores:
        """Normalise both. Gains of 1 are what the norms start with."""
        return replace(scores, query=self.query(scores.query), key=self.key(scores.key))


@own("off-by-one", "a query may attend to nothing")
class OffByOne(SoftmaxCore):
    """``exp(s) / (1 + sum exp(s))``: a softmax over the keys and one more score, which is 0."""

    version = "1"

    def weights(self, scores: Scores, /) -> Tensor:
        """Return the attention weights."""
        found = self.multiply(scores)
        nothing = torch.zeros_like(found[..., :1])
        return torch.softmax(torch.cat((nothing, found), dim=-1), dim=-1)[..., 1:]


@own("gated", "the mixed values of each head are gated by the layer's input")
class GatedAttention(qk.Attention):
    """``(sigmoid(x W_g) * mixed values) W_o``."""

    version = "1"

    def __init__(self, config: AttentionConfig, *, draw: bool = True) -> None:
        super().__init__(config, draw=False)
        self.gate = nn.Linear(config.d_model, config.num_heads * config.size_per_head)
        if draw:
            self.initialize(Initializer(0, "attention"))

    def initialize(self, initializer: Initializer) -> None:
        """Draw the gate like the other projections."""
        super().initialize(initializer)
        initializer.linear("gate", self.gate, self.config.init)

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        """Gate the mixed values, and project them."""
        gates = torch.sigmoid(self.gate(x)).unflatten(-1, (self.config.num_heads, -1))
        return super().output(mixed * gates.transpose(1, 2), x)


NETWORK = EncoderConfig(
    attention=AttentionConfig(d_model=16, num_heads=2),
    block=BlockConfig(d_ff=32),
    num_layers=1,
    vocabulary=10,
    classes=10,
    max_tokens=8,
)
TRAINING = TrainingConfig(
    steps=60, batch_size=32, optimizer=OptimizerConfig(learning_rate=3e-3), evaluate_every=20
)
STUDY = qk.Study(
    name="own-attention",
    question="Do changes of the scores and of the output help to reverse a sequence?",
    description="Reversal of 8 digits by one layer of 16 channels, 60 steps.",
    settings=(
        qk.Setting(
            name="reverse",
            task=SequenceTaskConfig(name="reverse", length=8, train_examples=2_000),
            network=NETWORK,
            training=TRAINING,
        ),
    ),
    variants=(
        "QKV",
        "Q-K=V",
        "Q-K=V@own-head-temperature",
        "QKV@own-query-key-norm",
        "QKV@own-off-by-one",
        "Q-K=V@own-gated",
    ),
    seeds=(0, 1),
)
