"""Networks and training settings of the papers' experiments, as in text or code. Torch-free."""

from collections.abc import Mapping

from qkvary.arch.attention import AttentionConfig, Initialization, PositionConfig, ScaleConfig
from qkvary.arch.networks import BlockConfig, EncoderConfig, LanguageModelConfig
from qkvary.studies.study import Setting
from qkvary.tasks.config import (
    CharacterTaskConfig,
    NumberProtocol,
    NumberTaskConfig,
    SequenceTaskConfig,
    SequenceTaskName,
)
from qkvary.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig

SYNTHETIC_TASKS: tuple[SequenceTaskName, ...] = ("reverse", "sort", "sub", "swap", "copy")
"""The tasks in the order of the papers' tables."""

SYNTHETIC_VARIANTS = ("QKV", "Q=K-V", "(Q=K-V)+", "Q-K=V", "Q=K=V", "(Q=K=V)+")
"""The variants in paper 1's tables of synthetic and vision tasks. Paper 2 has the first three."""

CHARACTER_VARIANTS = SYNTHETIC_VARIANTS[:3]
"""The variants in paper 2's character experiment."""

NUMBER_VARIANTS = ("QKV", "(Q=K-V)+", "Q=K-V")
"""The variants in paper 2's number experiment."""

DIGITS = 10
CHARACTERS = 65
"""Number of distinct characters in tiny Shakespeare."""

NUMBER_WORDS = 30
"""Number of distinct words in the spelled numbers, including the mark between them."""

NUMBER_EPOCHS = 15
NUMBER_BATCH = 64
NUMBER_STEPS_PER_EPOCH = {16: 49, 32: 24, 64: 12, 128: 6}
"""Number of whole batches in an epoch, by words per window. Both protocols have the same number."""

SOLVED = 0.99
"""The token accuracy on the validation split at which a synthetic task counts as solved."""


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

    Attention weights are Xavier-uniform over the packed projection, so variants with fewer
    projections start with larger weights. With ``matched``, all variants start with equally large
    weights. Other weights have torch's defaults.

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
    """Return a configuration with Adam, a cosine schedule, 5 warm-up steps and clipping at norm 5.

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

    Each run has two epochs of 390 batches of 128, and four validations per epoch.
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


def quick_sequences(name: SequenceTaskName, *, steps: int, learning_rate: float) -> Setting:
    """Return a setting that trains a synthetic task in seconds.

    The initial weights of all projections have the same standard deviation.
    """
    length = 16
    return Setting(
        name=name,
        task=SequenceTaskConfig(
            name=name, length=length, validation_examples=64, test_examples=1_000
        ),
        network=synthetic_network(
            d_model=32, num_layers=2, num_heads=4, length=length, dropout=0.0, matched=True
        ),
        training=synthetic_training(
            steps=steps, batch_size=32, evaluate_every=20, learning_rate=learning_rate
        ),
    )


def quick_characters() -> Setting:
    """Return a setting that trains on tiny Shakespeare's characters in seconds."""
    context = 32
    return Setting(
        name="characters",
        task=CharacterTaskConfig(
            context=context, evaluation="sampled", evaluation_batches=1, scored_characters=24_000
        ),
        network=character_network(
            context=context, d_model=64, num_heads=4, num_layers=2, dropout=0.0
        ),
        training=TrainingConfig(
            optimizer=OptimizerConfig(name="adam", learning_rate=8e-3, gradient_clip=1.0),
            schedule=ScheduleConfig(name="cosine_warmup", warmup_steps=20),
            steps=300,
            batch_size=32,
            evaluate_every=50,
        ),
    )


def number_network(context: int) -> LanguageModelConfig:
    """Return the language model of the number experiment.

    The residual stream itself is normalised before each sublayer.

    Source: code of paper 2: scaled embeddings that are also the head, sinusoids with all sines
    first, no biases in attention, ReLU, d_ff = 4 d, m = 10, dropout 0.1 after embedding and
    attention, dropout 0.2 after the feed-forward network, Xavier-uniform matrices inside the
    blocks, torch's default biases.
    """
    return LanguageModelConfig(
        attention=AttentionConfig(
            d_model=64,
            num_heads=8,
            causal=True,
            bias=False,
            out_bias=False,
            position=PositionConfig(plus_features=10),
            init=Initialization(scheme="xavier-matrices"),
        ),
        block=BlockConfig(
            d_ff=256,
            activation="relu",
            norm_placement="stream",
            dropout=0.1,
            feed_forward_dropout=0.2,
        ),
        num_layers=4,
        vocabulary=NUMBER_WORDS,
        max_tokens=context,
        positions="sinusoidal-halves",
        scale_embedding=True,
        head_bias=True,
        embedding_dropout=0.1,
        init=Initialization(scheme="xavier-matrices", embedding_std=0.125),
    )


def number_training(context: int, *, learning_rate: float) -> TrainingConfig:
    """Return a configuration of 15 epochs, with Adam and fastai's schedule ``fit_one_cycle``.

    Weight decay is decoupled and exempts biases and norms.

    Source: code of paper 2.
    """
    per_epoch = NUMBER_STEPS_PER_EPOCH[context]
    return TrainingConfig(
        steps=NUMBER_EPOCHS * per_epoch,
        batch_size=NUMBER_BATCH,
        optimizer=OptimizerConfig(
            name="adamw",
            learning_rate=learning_rate,
            betas=(0.95, 0.99),
            eps=1e-5,
            weight_decay=0.01,
            decay="matrices",
        ),
        schedule=ScheduleConfig(name="one_cycle"),
        evaluate_every=per_epoch,
    )


NUMBER_LIMITS: Mapping[NumberProtocol, tuple[str, ...]] = {
    "as-published": (
        (
            "All training numbers are below about 8,000, and all scored numbers are above. The "
            "words that begin a scored number therefore hardly occur in training."
        ),
    ),
    "clean": (
        (
            "Each test window lies between training windows. The test therefore measures "
            "whether a network can continue counting in known ranges, not in new ranges."
        ),
    ),
}
"""Texts for the report on the limits of the scores, by protocol."""

NUMBER_CEILING = (
    "A window does not say where it begins, so its first words cannot be predicted. Over all "
    "windows of 16, 32, 64 and 128 words, the best possible accuracies are 0.80, 0.90, 0.95 and "
    "0.98, and the best possible losses are 0.52, 0.26, 0.13 and 0.06."
)
"""Text for the report on the best possible scores, those of a solver that knows all numbers."""

NUMBER_UNDERTRAINED = (
    "With windows of 64 and 128 words, an epoch has only 12 and 6 updates, and the learning "
    "rate 1e-4 is a tenth of the higher learning rate. These settings therefore measure how far "
    "a short training gets, not what a network can learn."
)
"""Text for the report on the low scores of longer windows and of the lower learning rate."""

NUMBER_FLOORS: Mapping[NumberProtocol, str] = {
    "as-published": (
        "Always answering “thousand” has an accuracy of 0.152; predicting every word by its "
        "frequency in training has a loss of 2.80."
    ),
    "clean": (
        "Always answering “.” has an accuracy of 0.158; predicting every word by its frequency in "
        "training has a loss of 2.75."
    ),
}
"""Text for the report on predictors that ignore the input: their scores over all window sizes."""


def number_grid(
    protocol: NumberProtocol,
    *,
    learning_rates: tuple[float, ...] = (1e-3, 1e-4),
    contexts: tuple[int, ...] = (16, 32, 64, 128),
) -> tuple[Setting, ...]:
    """Return the settings of the number experiment: learning rates x words per window."""
    return tuple(
        Setting(
            name=f"numbers-lr{rate:g}-n{context}",
            task=NumberTaskConfig(context=context, protocol=protocol),
            network=number_network(context),
            training=number_training(context, learning_rate=rate),
            limits=(
                *NUMBER_LIMITS[protocol],
                NUMBER_CEILING,
                *((NUMBER_UNDERTRAINED,) if rate < 1e-3 or context > 32 else ()),
            ),
            note=NUMBER_FLOORS[protocol],
        )
        for rate in learning_rates
        for context in contexts
    )
