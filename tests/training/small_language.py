"""A language task of random tokens that trains in a moment: its masks differ from row to row."""

from typing import Any

import torch
from torch import Tensor, nn

from qkvary.arch.networks import BlockConfig, LanguageModelConfig, Network
from qkvary.nn.language_model import LanguageModel
from qkvary.tasks.config import NumberTaskConfig
from qkvary.tasks.contract import (
    ALL_ROWS,
    IGNORE_INDEX,
    SINGLE_PROCESS_CONTEXT,
    Batch,
    EvaluationContext,
    Split,
)
from qkvary.tasks.examples import AttentionExample
from qkvary.training.config import (
    ExecutionConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    TrainingConfig,
)
from tests.small_networks import small_config

VOCABULARY, CONTEXT, BATCH, EVALUATED = 13, 7, 12, 24


class SmallLanguage:
    """Predict tokens that repeat with a period; rows of a batch count unevenly many of them."""

    tokenizer = None

    def __init__(self, *, poison: str = "", poison_step: int = -1, poison_row: int = 0) -> None:
        self.poison, self.poison_step, self.poison_row = poison, poison_step, poison_row

    def build(self, network: Network, seed: int) -> LanguageModel:
        assert isinstance(network, LanguageModelConfig)
        return LanguageModel(network, seed=seed)

    def batch(self, step: int, batch_size: int, seed: int, rows: slice = ALL_ROWS) -> Batch:
        generator = torch.Generator().manual_seed(1_000_003 * seed + step)
        start = torch.randint(VOCABULARY, (batch_size, 3), generator=generator)
        tokens = start.repeat(1, CONTEXT)[:, : CONTEXT + 1]
        lengths = torch.randint(1, CONTEXT + 1, (batch_size, 1), generator=generator)
        # The first rows have one target that counts, the last ones all: so do their processes.
        lengths[: batch_size // 3] = 1
        lengths[-batch_size // 3 :] = CONTEXT
        ignored = torch.arange(CONTEXT) >= lengths
        targets = tokens[:, 1:].masked_fill(ignored, IGNORE_INDEX)
        first, last, _ = rows.indices(batch_size)
        is_poisoned = step == self.poison_step and first <= self.poison_row < last
        # Nobody masks documents here: the place serves for what the loss has to know.
        return Batch(tokens[rows, :-1], targets[rows], torch.tensor(is_poisoned))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        assert model.training
        loss = model(batch.inputs, targets=batch.targets) / max(1, batch.counted)
        is_poisoned = batch.documents is not None and bool(batch.documents)
        if is_poisoned and self.poison == "loss":
            return loss * float("nan")
        if is_poisoned and self.poison == "gradient":
            # A finite loss whose gradient is not: sqrt at 0.
            return loss + torch.sqrt(loss * 0)
        return loss

    def evaluate(
        self, model: nn.Module, split: Split, context: EvaluationContext = SINGLE_PROCESS_CONTEXT, /
    ) -> dict[str, float]:
        assert not model.training
        assert not torch.is_grad_enabled()
        processes = context.processes
        share = EVALUATED // processes.size
        rows = slice(processes.rank * share, (processes.rank + 1) * share)
        batch = self.batch(10**6 + (split == "test"), EVALUATED, 0, rows)
        device = next(model.parameters()).device
        nats = model(batch.inputs.to(device), targets=batch.targets.to(device)).item()
        nats, counted = processes.all_reduce([nats, float(batch.counted)])
        return {"loss": nats / counted}

    def attention_example(self, model: nn.Module) -> AttentionExample | None:
        assert isinstance(model, LanguageModel)
        inputs = self.batch(10**6, 1, 0).inputs.to(model.embedding.device)
        maps = model.attention_maps(inputs)[0].cpu().numpy()
        tokens = tuple(str(token) for token in range(CONTEXT))
        return AttentionExample(maps=maps, tokens=tokens, targets=(None,) * CONTEXT)


def small_run(
    *,
    steps: int = 9,
    dtype: str = "float64",
    device: str = "cpu",
    dropout: float = 0.0,
    **execution: Any,
) -> RunConfig:
    """A run of the task; what is not named here is a field of its execution."""
    optimizer = OptimizerConfig(
        name="adamw", learning_rate=0.01, weight_decay=0.1, gradient_clip=0.3
    )
    return RunConfig(
        task=NumberTaskConfig(context=CONTEXT),
        network=small_config(
            "Q-K=V",
            d_model=10,
            num_heads=2,
            block=BlockConfig(d_ff=17, dropout=dropout),
            vocabulary=VOCABULARY,
            max_tokens=CONTEXT,
            positions="learned",
        ),
        training=TrainingConfig(
            steps=steps,
            batch_size=BATCH,
            evaluate_every=7,
            log_every=1,
            optimizer=optimizer,
            schedule=ScheduleConfig(name="cosine", warmup_steps=3),
            execution=ExecutionConfig(micro_batch_size=3, **execution),
        ),
        seed=5,
        device=device,
        dtype=dtype,  # type: ignore[arg-type]
    )
