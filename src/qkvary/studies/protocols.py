"""Networks and training of the papers, by their text or code. Torch-free."""

from __future__ import annotations

from qkvary.arch.attention import AttentionConfig, Initialization, PositionConfig, ScaleConfig
from qkvary.arch.networks import BlockConfig, EncoderConfig, LanguageModelConfig
from qkvary.studies.study import Setting
from qkvary.tasks.config import SequenceTaskConfig, SequenceTaskName
from qkvary.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig

SYNTHETIC_TASKS: tuple[SequenceTaskName, ...] = ("reverse", "sort", "sub", "swap", "copy")
"""In the order of the papers' tables."""

SYNTHETIC_VARIANTS = ("QKV", "Q=K-V", "(Q=K-V)+", "Q-K=V", "Q=K=V", "(Q=K=V)+")
"""The rows of the synthetic table of paper 1; paper 2 has the first three."""

CHARACTER_VARIANTS = ("QKV", "Q=K-V", "(Q=K-V)+")
"""The rows of the character experiment of paper 2."""

DIGITS = 10
CHARACTERS = 65
"""Distinct characters of tiny Shakespeare."""

SOLVED = 0.99
"""Token accuracy on the validation split from which a synthetic task counts as solved."""


def synthetic_network(
    *,
    d_model: int,
    num_layers: int,
    num_heads: int,
    length: int,
    dropout: float = 0.1,
    matched: bool = False,
) -> EncoderConfig:
    """Return the post-norm encoder of the synthetic experiments.

    Attention is initialized Xavier-uniform over the packed projection, so that fewer projections
    start larger; ``matched`` initializes all alike. Other weights use torch's defaults.

    Source: code of paper 2 (Key-Value Transformer): ReLU, d_ff = 2 d, m = 10, no dropout on
    attention probabilities.
    """
    return EncoderConfig(
        attention=AttentionConfig(
            d_model=d_model,
            num_heads=num_heads,
            position=PositionConfig(plus_features=10),
            init=Initialization(scheme="xavier", matched=matched),
        ),
        block=BlockConfig(
            d_ff=2 * d_model,
            activation="relu",
            norm_placement="post",
            dropout=dropout,
            inner_dropout=dropout,
        ),
        num_layers=num_layers,
        vocabulary=DIGITS,
        classes=DIGITS,
        max_tokens=length,
    )


def synthetic_training(
    *, steps: int, batch_size: int, evaluate_every: int, learning_rate: float = 1e-3
) -> TrainingConfig:
    """Return the training with Adam, a cosine with five steps of warm-up and clipping at norm 5.

    Source: paper 2, section 3.1, and its code.
    """
    return TrainingConfig(
        steps=steps,
        batch_size=batch_size,
        optimizer=OptimizerConfig(name="adam", learning_rate=learning_rate, gradient_clip=5.0),
        schedule=ScheduleConfig(name="cosine_warmup", warmup_steps=5),
        evaluate_every=evaluate_every,
        solve_threshold=SOLVED,
    )


def synthetic_grid(*, widths: tuple[int, ...], lengths: tuple[int, ...]) -> tuple[Setting, ...]:
    """Return the published settings: tasks x widths x layers {2, 4} x heads {2, 4} x lengths.

    Two epochs of 390 batches of 128, four validations each.
    """
    return tuple(
        Setting(
            name=f"{task}-d{width}-L{layers}-H{heads}-n{length}",
            task=SequenceTaskConfig(name=task, length=length),
            network=synthetic_network(
                d_model=width, num_layers=layers, num_heads=heads, length=length
            ),
            training=synthetic_training(steps=780, batch_size=128, evaluate_every=97),
        )
        for task in SYNTHETIC_TASKS
        for width in widths
        for layers in (2, 4)
        for heads in (2, 4)
        for length in lengths
    )


def character_network(
    *, context: int, d_model: int, num_heads: int, num_layers: int, dropout: float = 0.2
) -> LanguageModelConfig:
    """Return the pre-norm language model of the character experiment.

    Source: code of paper 2: learned positions, input projections without bias, scores scaled by
    the full width, dropout on attention probabilities and on both sublayers, ReLU, d_ff = 4 d,
    m = 20 with one map per head, untied head with bias, torch's default initialization.
    """
    return LanguageModelConfig(
        attention=AttentionConfig(
            d_model=d_model,
            num_heads=num_heads,
            causal=True,
            bias=False,
            dropout=dropout,
            scale=ScaleConfig(by="width"),
            position=PositionConfig(plus_features=20, plus_per_head=True),
        ),
        block=BlockConfig(d_ff=4 * d_model, activation="relu", dropout=dropout),
        num_layers=num_layers,
        vocabulary=CHARACTERS,
        max_tokens=context,
        tied_head=False,
        head_bias=True,
    )
