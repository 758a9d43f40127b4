"""Trains networks with separate or shared keys and values; their caches are quantized later.

The networks have rotary positions or attention biases.
"""

from qkvary.arch.attention import AttentionConfig, Initialization
from qkvary.arch.networks import BlockConfig, LanguageModelConfig
from qkvary.papers.key_value.protocols import CHARACTERS
from qkvary.studies.study import Setting, Study
from qkvary.tasks.config import CharacterTaskConfig
from qkvary.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig

CONTEXT = 256
SMALL = Initialization(scheme="normal")

STUDY = Study(
    name="quantization",
    question="Which quantization scales suit a cache that stores one tensor as both key and value?",
    description=(
        "This study trains and stores the networks for `studies/ours/quantization/measure.py`, "
        "which quantizes their caches. The networks train on tiny Shakespeare in windows of 256 "
        "characters, with three layers of three heads of 32 channels, for 450 steps of 8 "
        "windows. They have either rotary positions or attention biases that fall with the "
        "distance (ALiBi), which do not change keys."
    ),
    settings=(
        Setting(
            name="characters",
            task=CharacterTaskConfig(
                context=CONTEXT,
                evaluation="sampled",
                evaluation_batches=1,
                scored_characters=24_000,
            ),
            network=LanguageModelConfig(
                attention=AttentionConfig(
                    d_model=96, num_heads=3, causal=True, bias=False, init=SMALL
                ),
                block=BlockConfig(d_ff=384),
                num_layers=3,
                vocabulary=CHARACTERS,
                max_tokens=CONTEXT,
                positions="none",
                init=SMALL,
            ),
            training=TrainingConfig(
                steps=450,
                batch_size=8,
                optimizer=OptimizerConfig(name="adam", learning_rate=5e-3, gradient_clip=1.0),
                schedule=ScheduleConfig(name="cosine_warmup", warmup_steps=30),
                evaluate_every=150,
            ),
            keep_networks=True,
        ),
    ),
    variants=("QKV@alibi", "Q-K=V@alibi", "QKV@rotary", "Q-K=V@rotary"),
    baseline="QKV@alibi",
    contrasts=(("Q-K=V@rotary", "QKV@rotary"),),
    seeds=(0, 1, 2, 3, 4),
)
