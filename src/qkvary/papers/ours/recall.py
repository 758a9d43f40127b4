"""Networks and training for associative recall (answering a key with its value). Torch-free."""

from collections.abc import Mapping, Sequence

from qkvary.arch.attention import TORCH_INIT, AttentionConfig, Initialization
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.studies.study import Setting
from qkvary.tasks.config import RecallTaskConfig
from qkvary.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig

RECALL_VARIANTS = ("QKV", "Q=K-V", "Q-K=V", "Q=K=V", "GQA-2", "MQA", "Q-GQA-2", "Q-MQA")
"""The variants of paper 1, which share projections, heads or both."""
PROJECTIONS = ("QKV", "Q=K-V", "Q-K=V", "Q=K=V")
"""Variants that share projections but not heads, for networks with one head."""
CORES = ("linear", "soft")
"""Causal cores without a softmax: linear attention with 1 + elu, and SOFT."""
SOLVED = 0.99
"""A run ends at this validation accuracy, as in the published code."""

POSITIONAL_FLOORS: Mapping[tuple[int, int], float] = {
    (32, 4): 0.307,
    (64, 4): 0.288,
    (128, 8): 0.155,
    (256, 16): 0.083,
}
"""Accuracy of the best guess from the position of a query only, by (length, pairs). The accuracy
exceeds chance because early pairs are queried at small distances more often. The numbers are for
the default ``power`` of the distribution of distances."""


def with_cores(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the labels, the same labels with linear attention, and QKV and Q-K=V with SOFT."""
    linear, other = CORES
    return (
        *labels,
        *(f"{label}@{linear}" for label in labels),
        *(f"{label}@{other}" for label in ("QKV", "Q-K=V")),
    )


def recall_network(
    task: RecallTaskConfig,
    *,
    d_model: int,
    num_heads: int,
    d_ff: int,
    dropout: float = 0.0,
    tied_head: bool = False,
    init: Initialization = TORCH_INIT,
) -> LanguageModelConfig:
    """Return a pre-norm language model of two layers with learned positions."""
    return LanguageModelConfig(
        attention=AttentionConfig(
            d_model=d_model, num_heads=num_heads, causal=True, dropout=dropout, init=init
        ),
        block=BlockConfig(d_ff=d_ff),
        num_layers=2,
        vocabulary=task.vocabulary,
        max_tokens=task.length,
        tied_head=tied_head,
        embedding_dropout=dropout,
        init=init,
    )


def recall_training(
    *,
    steps: int,
    batch_size: int,
    evaluate_every: int,
    learning_rate: float,
    weight_decay: float = 0.0,
    warmup_steps: int = 0,
    gradient_clip: float | None = None,
) -> TrainingConfig:
    """Return a training configuration with AdamW and a cosine schedule.

    The learning rate falls to zero along the cosine. Training ends early if the task is solved.
    """
    return TrainingConfig(
        steps=steps,
        batch_size=batch_size,
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            gradient_clip=gradient_clip,
        ),
        schedule=ScheduleConfig(name="cosine", warmup_steps=warmup_steps),
        evaluate_every=evaluate_every,
        solve_threshold=SOLVED,
        stop_when_solved=True,
    )


def recall_floor(task: RecallTaskConfig) -> str:
    """Return a sentence on the scores of solvers that do not recall."""
    floor = POSITIONAL_FLOORS[task.length, task.pairs]
    return (
        f"A solver that does not recall scores {1 / task.pairs:g} if it always answers with the "
        f"value of one fixed pair, such as the first. It scores {floor:g} if it answers with the "
        "value of the pair that is most likely at the query's position."
    )


def quick_recall(
    name: str,
    *,
    d_model: int,
    num_heads: int,
    learning_rate: float,
    limits: tuple[str, ...],
    steps: int = 800,
) -> Setting:
    """Return a small setting that trains in seconds and has a separate table.

    With one query head there are no heads to share, so variants only share projections.
    """
    task = RecallTaskConfig(
        length=32, pairs=4, vocabulary=64, validation_examples=256, test_examples=1_000
    )
    return Setting(
        name=name,
        task=task,
        network=recall_network(task, d_model=d_model, num_heads=num_heads, d_ff=2 * d_model),
        training=recall_training(
            steps=steps,
            batch_size=32,
            evaluate_every=steps // 20,
            learning_rate=learning_rate,
            warmup_steps=40,
            gradient_clip=1.0,
        ),
        table=name,
        variants=with_cores(PROJECTIONS) if num_heads == 1 else None,
        limits=limits,
        note=recall_floor(task),
    )


def published_recall() -> tuple[Setting, ...]:
    """Return the published settings: (length, pairs) x widths, with one head and with four.

    Settings with one head have a separate table. Their variants share only projections, because
    there are no heads to share.

    Source: code of Arora et al. 2023, figure 2: one head, dropout 0.1 after the embedding and on
    attention probabilities, weights from N(0, 0.02), tied head, 64 epochs of AdamW with weight
    decay 0.1, and a cosine schedule that updates the learning rate after each epoch. The published
    blocks have a second norm instead of a feed-forward network. Our blocks have a feed-forward
    network of twice the width.
    """
    return tuple(
        _published_setting(length, pairs, batch_size, width=width, num_heads=heads)
        for heads in (4, 1)
        for length, pairs, batch_size in ((64, 4, 512), (128, 8, 512), (256, 16, 256))
        for width in (64, 128, 256, 512)
    )


def _published_setting(
    length: int, pairs: int, batch_size: int, *, width: int, num_heads: int
) -> Setting:
    task = RecallTaskConfig(length=length, pairs=pairs)
    per_epoch = task.train_examples // batch_size
    return Setting(
        name=f"recall-n{length}-k{pairs}-d{width}-H{num_heads}",
        task=task,
        network=recall_network(
            task,
            d_model=width,
            num_heads=num_heads,
            d_ff=2 * width,
            dropout=0.1,
            tied_head=True,
            init=Initialization(scheme="normal", std=0.02),
        ),
        training=recall_training(
            steps=64 * per_epoch,
            batch_size=batch_size,
            evaluate_every=per_epoch,
            learning_rate=1e-3,
            weight_decay=0.1,
        ),
        note=recall_floor(task),
        table="one head, as published" if num_heads == 1 else None,
        variants=with_cores(PROJECTIONS) if num_heads == 1 else None,
    )
