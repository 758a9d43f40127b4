"""Trains networks on character generation as described in the text of paper 2."""

from qkvary.papers.key_value.protocols import CHARACTER_VARIANTS, character_network
from qkvary.studies.study import Setting, Study
from qkvary.tasks.config import CharacterTaskConfig
from qkvary.training.config import OptimizerConfig, TrainingConfig

SIZES = ((8, 64, 1, 1), (32, 64, 4, 2), (32, 192, 4, 3), (64, 192, 4, 6))
"""Context, width, heads and layers of four models. The text lists the values, but not the
combinations of values."""

STUDY = Study(
    name="chars-paper",
    question=(
        "Within 1,000 iterations, do networks with two projections learn characters as well as "
        "networks with three?"
    ),
    description=(
        "Networks train on tiny Shakespeare as in the text of paper 2 (Key-Value Transformer): "
        "1,000 iterations, Adam at 5e-4, dropout 0.2, m = 20 channels of the 2D encoding (+), and "
        "the loss over the entire held-out text. The paper lists contexts of 8, 32 and 64 "
        "characters, widths 64 and 192, 1 or 4 heads, and 1, 2, 3 or 6 layers. The "
        "paper trains four models, but does not state their combinations of these values. The four "
        "models of this study cover every listed value. The batch size of 64 and the number of "
        "runs (two) are taken from the code. This study measures the validation loss every 100 "
        "iterations; the paper measures it after every iteration."
    ),
    settings=tuple(
        Setting(
            name=f"characters-d{width}-L{layers}-H{heads}-n{context}",
            task=CharacterTaskConfig(context=context, evaluation="exact"),
            network=character_network(
                context=context, d_model=width, num_heads=heads, num_layers=layers
            ),
            training=TrainingConfig(
                optimizer=OptimizerConfig(name="adam", learning_rate=5e-4),
                steps=1_000,
                batch_size=64,
                evaluate_every=100,
            ),
        )
        for context, width, heads, layers in SIZES
    ),
    variants=CHARACTER_VARIANTS,
    seeds=(0, 1),
    contrasts=(("(Q=K-V)+", "Q=K-V"),),
)
