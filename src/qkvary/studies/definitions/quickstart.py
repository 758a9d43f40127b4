"""The study of ``make study``: the variants with published figures and a new one, in minutes."""

from qkvary.studies.protocols import character_network, synthetic_network, synthetic_training
from qkvary.studies.study import Setting, Study
from qkvary.tasks.config import CharacterTaskConfig, SequenceTaskConfig, SequenceTaskName
from qkvary.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig

LENGTH = 16
CONTEXT = 32


def _synthetic(name: SequenceTaskName, *, steps: int, learning_rate: float) -> Setting:
    return Setting(
        name=name,
        task=SequenceTaskConfig(
            name=name, length=LENGTH, validation_examples=64, test_examples=1_000
        ),
        network=synthetic_network(
            d_model=32, num_layers=2, num_heads=4, length=LENGTH, dropout=0.0, matched=True
        ),
        training=synthetic_training(
            steps=steps, batch_size=32, evaluate_every=20, learning_rate=learning_rate
        ),
    )


def _characters() -> Setting:
    return Setting(
        name="characters",
        task=CharacterTaskConfig(
            context=CONTEXT, evaluation="sampled", evaluation_batches=1, scored_characters=24_000
        ),
        network=character_network(
            context=CONTEXT, d_model=64, num_heads=4, num_layers=2, dropout=0.0
        ),
        training=TrainingConfig(
            optimizer=OptimizerConfig(name="adam", learning_rate=8e-3, gradient_clip=1.0),
            schedule=ScheduleConfig(name="cosine_warmup", warmup_steps=20),
            steps=300,
            batch_size=32,
            evaluate_every=50,
        ),
    )


STUDY = Study(
    name="quickstart",
    question=(
        "What does it cost to share the query, key and value projections, and is it the symmetry "
        "of shared queries and keys that costs it?"
    ),
    description=(
        "Every variant with a published figure, and I-K=V: the parameters and the cache of Q=K=V "
        "without its symmetry. Swap and sort of 16 digits in 400 and 600 steps, and "
        "300 steps of character generation on tiny Shakespeare: networks of two layers and four "
        "heads, stopped where some variants have solved a task and others have not. Equal "
        "hyper-parameters, equal data and equal initial deviation of projections for all. These "
        "are smaller networks than the papers': published figures beside ours show whether the "
        "order is the same, not whether the values are."
    ),
    settings=(
        _synthetic("swap", steps=400, learning_rate=2e-3),
        _synthetic("sort", steps=600, learning_rate=3e-3),
        _characters(),
    ),
    variants=(
        "QKV",
        "Q=K-V",
        "(Q=K-V)+",
        "Q-K=V",
        "Q=K=V",
        "(Q=K=V)+",
        "GQA-2",
        "MQA",
        "Q-GQA-2",
        "Q-MQA",
        "I-K-V",
        "I-K=V",
    ),
    seeds=(0, 1, 2, 3, 4, 5, 6, 7),
    published=("three-projections-table-2",),
    contrasts=(("I-K=V", "Q=K=V"), ("(Q=K=V)+", "Q=K=V"), ("Q-K=V", "Q=K-V")),
)
