"""Trains a small bidirectional encoder to predict masked characters of tiny Shakespeare."""

from qkvary.arch.attention import AttentionConfig, Initialization, PositionConfig
from qkvary.arch.networks import BlockConfig, EncoderConfig
from qkvary.studies.study import Setting, Study
from qkvary.tasks.config import MaskedTaskConfig
from qkvary.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig

CONTEXT, CHARACTERS, STEPS = 32, 65, 600
_LIMITS = (
    "The learning rate was tested only with QKV, in one run with another seed.",
    (
        "A two-layer network on characters shows the direction of an effect. It does not show how "
        "large the effect is in BERT."
    ),
)

STUDY = Study(
    name="masked-quick",
    question="What does sharing cost a masked language model?",
    description=(
        "The network predicts hidden characters of tiny Shakespeare from the characters on both "
        "sides. In each window of 32 characters, 15 % are hidden, as in BERT. The network has "
        "bidirectional attention, two layers of width 64 with four heads and learned positions, "
        "and trains for 600 steps of 32 windows. The loss is measured on 24,000 held-out "
        "characters. All variants have equal hyper-parameters."
    ),
    settings=(
        Setting(
            name="masked",
            task=MaskedTaskConfig(context=CONTEXT, scored_characters=24_000),
            network=EncoderConfig(
                attention=AttentionConfig(
                    d_model=64, num_heads=4, position=PositionConfig(plus_features=10)
                ),
                block=BlockConfig(d_ff=128),
                num_layers=2,
                vocabulary=CHARACTERS + 1,
                classes=CHARACTERS,
                max_tokens=CONTEXT,
                positions="learned",
                init=Initialization(embedding_std=1.0),
            ),
            training=TrainingConfig(
                steps=STEPS,
                batch_size=32,
                optimizer=OptimizerConfig(
                    name="adamw", learning_rate=5e-3, weight_decay=0.01, gradient_clip=1.0
                ),
                schedule=ScheduleConfig(name="cosine", warmup_steps=20),
                evaluate_every=STEPS // 4,
            ),
            limits=_LIMITS,
        ),
    ),
    variants=("QKV", "Q=K-V", "(Q=K-V)+", "Q-K=V", "Q=K=V"),
    seeds=(0, 1, 2, 3),
    contrasts=(("Q-K=V", "Q=K-V"), ("(Q=K-V)+", "Q=K-V")),
)
