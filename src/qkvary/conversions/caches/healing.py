"""Heals (retrains) a converted network by distillation from the original, in the training loop.

The loss is the KL divergence of the next-token distribution from that of the original network.
Attention is trained; everything else stays as it was.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, cast

import torch
from jaxtyping import Int
from torch import Tensor, nn

from qkvary.arch.canonical import stored
from qkvary.arch.networks import Network
from qkvary.checkpoints.structure import make_language_model
from qkvary.checkpoints.training_state import state_sha256
from qkvary.conversions.caches.divergence import Comparison, divergence_sum
from qkvary.data.rows import rows_of_step
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.durable import make_directory
from qkvary.storage.environment import NEVER, Stop
from qkvary.storage.errors import DivergedError, StoppedError
from qkvary.tasks.config import TaskConfig
from qkvary.tasks.config_parts import digest
from qkvary.tasks.contract import ALL_ROWS, SINGLE_PROCESS_CONTEXT, Batch, EvaluationContext, Split
from qkvary.training.config import (
    ExecutionConfig,
    OptimizerConfig,
    Precision,
    RunConfig,
    ScheduleConfig,
    TrainingConfig,
)
from qkvary.training.loop import train

BATCH_TOKENS = 4096
PASS_TOKENS = 512
"""Tokens per forward pass on a CPU; on other devices a step is one pass."""
LEARNING_RATE = 5e-4
"""The peak learning rate for ``FULL_TOKENS`` or more. For fewer tokens, the rate is proportional to
the square root of their number, because 5e-4 is too high for them. For SmolLM2-135M at half the
cache, the loss with 5e-4 is 0.065 nats higher than with 1e-4 after 50k tokens, and 0.014 nats
higher than with 2e-4 after 200k tokens."""
FULL_TOKENS = 1_000_000
WARMUP = 0.1
"""Share of the steps in which the learning rate rises."""


@stored("DistillationConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationConfig(TaskConfig):
    """A distillation, described by the digests of its two networks and its text."""

    metric: ClassVar[str] = "divergence"
    higher_is_better: ClassVar[bool] = False
    has_test: ClassVar[bool] = False
    name: Literal["distillation"] = "distillation"
    original: str
    """sha256 of the weights of the original network."""
    converted: str
    """sha256 of the weights that healing starts from."""
    text: str
    """sha256 of the tokens."""
    context: int
    """Tokens per window."""

    @property
    def data_fingerprint(self) -> str:
        """sha256 of the networks and the text."""
        return digest("distillation", self.original, self.converted, self.text, self.context)

    @property
    def sequence_length(self) -> int:
        """Number of tokens in one sequence, from which the costs of training are computed."""
        return self.context


class Distillation:
    """The task that trains the attention of a converted network to predict like the original."""

    tokenizer = None

    def __init__(
        self,
        original: LanguageModel,
        converted: LanguageModel,
        tokens: Int[Tensor, "windows tokens"],
        held_out: Int[Tensor, "others tokens"],
    ) -> None:
        self.original, self.converted = original, converted
        self.tokens, self.held_out = tokens, held_out
        self.config = DistillationConfig(
            original=state_sha256(original.state_dict(), {}),
            converted=state_sha256(converted.state_dict(), {}),
            text=hashlib.sha256(tokens.numpy().tobytes()).hexdigest(),
            context=tokens.shape[1],
        )

    def build(self, network: Network, seed: int) -> LanguageModel:
        """Return a copy of the converted network in which only attention is trained."""
        del network, seed
        weights = self.converted.embedding
        made = make_language_model(self.converted.config).to(weights.device, weights.dtype).eval()
        made.load_state_dict(self.converted.state_dict())
        for name, parameter in made.named_parameters():
            parameter.requires_grad_(".attention." in name)
        return made

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        """Return the windows of a step, in the shuffled order of its epoch."""
        count = len(self.tokens)
        numbers = rows_of_step(step, batch_size, rows=count, seed=seed, chosen=rows)
        chosen = self.tokens[torch.from_numpy(numbers)]
        return Batch(chosen, chosen)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean divergence over tokens."""
        with torch.no_grad():
            wanted = self.original.features(batch.inputs)
        network = cast("LanguageModel", model)
        return batch.mean(
            divergence_sum(self.original, network, wanted, network.features(batch.inputs))
        )

    def evaluate(
        self, model: nn.Module, split: Split, context: EvaluationContext = SINGLE_PROCESS_CONTEXT, /
    ) -> dict[str, float]:
        """Return the divergence and the loss on the held-out text."""
        del split, context
        compared = Comparison(self.original, self.held_out)
        loss, divergence = compared.measure(cast("LanguageModel", model))
        return {"divergence": divergence, "loss": loss}

    def attention_example(self, model: nn.Module) -> None:
        """Return None, because this task has no example of attention maps."""
        del model


def choose_learning_rate(tokens: int) -> float:
    """Return the peak learning rate for a number of tokens."""
    return LEARNING_RATE * min(1.0, tokens / FULL_TOKENS) ** 0.5


def heal(
    task: Distillation,
    directory: Path,
    *,
    tokens: int,
    seed: int = 0,
    learning_rate: float | None = None,
    precision: Precision = "full",
    stop: Stop = NEVER,
) -> LanguageModel:
    """Return the healed network.

    If an earlier call was stopped or killed, healing continues from the newest checkpoint in
    ``directory``.
    """
    device, dtype = task.converted.embedding.device, task.converted.embedding.dtype
    rows = max(1, BATCH_TOKENS // task.config.context)
    most = PASS_TOKENS if device.type == "cpu" else BATCH_TOKENS
    steps = max(1, -(-tokens // (rows * task.config.context)))
    training = TrainingConfig(
        steps=steps,
        batch_size=rows,
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=learning_rate or choose_learning_rate(tokens),
            weight_decay=0.0,
            gradient_clip=1.0,
        ),
        schedule=ScheduleConfig(name="cosine", warmup_steps=int(WARMUP * steps), floor=0.1),
        evaluate_every=steps,
        log_every=1,
        execution=ExecutionConfig(
            micro_batch_size=max(1, most // task.config.context),
            precision=precision,
            threads=torch.get_num_threads(),
        ),
    )
    run = RunConfig(
        task=task.config,
        network=task.converted.config,
        training=training,
        seed=seed,
        device=str(device),
        dtype="float64" if dtype == torch.float64 else "float32",
    )
    make_directory(directory)
    outcome = train(run, task, directory, stop=stop.is_set)
    if outcome.status == "diverged":
        raise DivergedError(f"healing diverged: {outcome.message}; try a smaller --learning-rate")
    if outcome.status == "stopped":
        raise StoppedError(stop.number)
    return cast("LanguageModel", outcome.network)
