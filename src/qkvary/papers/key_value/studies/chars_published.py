"""Trains networks on character generation as in the code of paper 2."""

from dataclasses import replace

from qkvary.papers.key_value.protocols import CHARACTER_VARIANTS, character_network
from qkvary.papers.recomputation import published_tables
from qkvary.studies.study import Setting, Study
from qkvary.tasks.config import CharacterTaskConfig
from qkvary.training.config import OptimizerConfig, TrainingConfig

SIZES = (
    (64, 64, 192, 3, 6, 5e-4),
    (64, 8, 192, 3, 6, 5e-4),
    (64, 32, 64, 1, 1, 5e-3),
    (128, 128, 64, 2, 2, 5e-3),
)
"""Batch size, context, width, heads, layers and learning rate of each setting. In the
code, one more setting is commented out."""


def _setting(
    batch: int, context: int, width: int, heads: int, layers: int, rate: float, *, steps: int
) -> Setting:
    return Setting(
        name=f"characters-d{width}-L{layers}-H{heads}-n{context}",
        task=CharacterTaskConfig(
            context=context, evaluation="sampled", evaluation_batch_size=batch
        ),
        network=character_network(
            context=context, d_model=width, num_heads=heads, num_layers=layers
        ),
        training=TrainingConfig(
            optimizer=OptimizerConfig(name="adamw", learning_rate=rate, weight_decay=0.01),
            steps=steps,
            batch_size=batch,
            evaluate_every=200,
        ),
    )


STUDY = Study(
    name="chars-published",
    question="Are the published losses of character generation reproduced?",
    description=(
        "Networks train on tiny Shakespeare as in the code of paper 2 (Key-Value Transformer): "
        "10,000 iterations (the text says 1,000), AdamW with torch's weight decay of 0.01, dropout "
        "0.2, two runs. Every 200 iterations, the mean loss of 200 random batches is measured. The "
        "code sets one seed, 1337."
    ),
    settings=tuple(_setting(*size, steps=10_000) for size in SIZES),
    variants=CHARACTER_VARIANTS,
    seeds=(1337, 1338),
    published=published_tables("key-value-notebook-characters"),
)
PROTOCOLS = {
    "as-published": STUDY,
    "first-1000": replace(
        STUDY,
        name="chars-published-first-1000",
        description=(
            "The study runs the first 1,000 of the 10,000 iterations in paper 2's code, because "
            "the text of the paper states 1,000. The network has the size for which the "
            "notebook of the published code stores losses after 1,000 iterations. The data is "
            "tiny Shakespeare. Training uses AdamW at a constant learning rate with torch's "
            "weight decay of 0.01 and dropout 0.2, in two runs. Every 200 iterations, the mean "
            "loss of 200 random batches is measured."
        ),
        settings=(_setting(*SIZES[0], steps=1_000),),
        published=published_tables("key-value-notebook-characters-1000"),
    ),
}
