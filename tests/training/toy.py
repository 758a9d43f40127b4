"""A task that trains in a tenth of a second, with dropout, for tests of the loop."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig, EncoderConfig
from qkvary.tasks.config import SequenceTaskConfig
from qkvary.tasks.contract import (
    ALL_ROWS,
    SINGLE_PROCESS_CONTEXT,
    Batch,
    EvaluationContext,
    Network,
    Split,
)
from qkvary.tasks.examples import AttentionExample
from qkvary.training.config import OptimizerConfig, RunConfig, ScheduleConfig, TrainingConfig

LENGTH = 5
SYMBOLS = 7


class ToyModel(nn.Module):
    """Two linear layers around a dropout; ``blocks`` as the real networks have them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, 11)
        self.blocks = nn.ModuleList([nn.Linear(11, 11), nn.Linear(11, 11)])
        self.head = nn.Linear(11, SYMBOLS)
        self.dropout = nn.Dropout(0.3)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = x + self.dropout(torch.relu(block(x)))
        return self.head(x)


class ToyTask:
    """Each symbol s is to be answered by 6 - s."""

    def __init__(self, *, poison_step: int | None = None, poison: str = "loss") -> None:
        self.poison_step, self.poison = poison_step, poison
        self.evaluations: list[str] = []

    def build(self, _network: Network, seed: int) -> nn.Module:
        return ToyModel(seed)

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        generator = torch.Generator().manual_seed(1_000_003 * seed + step)
        tokens = torch.randint(SYMBOLS, (batch_size, LENGTH), generator=generator)
        self.step = step
        return Batch(tokens[rows], SYMBOLS - 1 - tokens[rows])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        assert model.training
        loss = F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
        if self.step == self.poison_step:
            if self.poison == "loss":
                return loss * float("nan")
            # A finite loss whose gradient is not: sqrt at 0.
            return loss + torch.sqrt((model.head.weight * 0).sum())  # type: ignore[union-attr, operator]
        return loss

    def evaluate(
        self,
        model: nn.Module,
        split: Split,
        _context: EvaluationContext = SINGLE_PROCESS_CONTEXT,
        /,
    ) -> dict[str, float]:
        assert not model.training
        assert not torch.is_grad_enabled()
        self.evaluations.append(split)
        inputs, targets, *_ = self.batch(10**6 + (split == "test"), 37, 0)
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        right = (logits.argmax(-1) == targets).double().mean()
        return {"loss": loss.item(), "accuracy": right.item()}

    def attention_example(self, _model: nn.Module) -> AttentionExample | None:
        maps = np.full((2, 1, LENGTH, LENGTH), 1 / LENGTH)
        tokens = tuple(str(index) for index in range(LENGTH))
        return AttentionExample(maps=maps, tokens=tokens, targets=(4, 3, None, 1, 0))


def toy_network(label: str = "QKV") -> EncoderConfig:
    attention = AttentionConfig(d_model=8, num_heads=2, variant=parse_variant(label), causal=False)
    return EncoderConfig(
        attention=attention,
        block=BlockConfig(d_ff=11),
        num_layers=2,
        vocabulary=SYMBOLS,
        max_tokens=LENGTH,
        classes=SYMBOLS,
    )


def toy_run(
    *, steps: int = 40, seed: int = 3, clip: float | None = 1.0, **training: object
) -> RunConfig:
    fields: dict[str, object] = {"evaluate_every": 13, "log_every": 7, **training}
    return RunConfig(
        task=SequenceTaskConfig(name="sub", length=LENGTH, vocabulary=SYMBOLS),
        network=toy_network(),
        training=TrainingConfig(
            steps=steps,
            batch_size=6,
            optimizer=OptimizerConfig(
                name="adamw", learning_rate=0.02, weight_decay=0.05, gradient_clip=clip
            ),
            schedule=ScheduleConfig(name="cosine_warmup", warmup_steps=3),
            **fields,  # type: ignore[arg-type]
        ),
        seed=seed,
    )
