"""A study of two runs whose stored form is frozen: half of it lies in ``frozen/half-run``.

That folder is never made again: it proves that runs which an older version began are found and
resumed. Each of its runs was stopped after ``HALF`` steps. With ``PORTABLE`` in the environment
its arithmetic is the same on all x86-64 processors with AVX-512, and on those without.
"""

from qkvary.arch.attention import AttentionConfig, Initialization
from qkvary.arch.networks import BlockConfig, EncoderConfig
from qkvary.studies.study import Setting, Study
from qkvary.tasks.config import SequenceTaskConfig
from qkvary.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig

HALF = 7
PORTABLE = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}

STUDY = Study(
    name="frozen",
    question="Are runs of older versions resumed?",
    description="One small encoder, two variants.",
    settings=(
        Setting(
            name="reverse",
            task=SequenceTaskConfig(
                name="reverse",
                length=5,
                vocabulary=7,
                train_examples=43,
                validation_examples=11,
                test_examples=13,
            ),
            network=EncoderConfig(
                attention=AttentionConfig(
                    d_model=12, num_heads=3, dropout=0.1, init=Initialization(scheme="xavier")
                ),
                block=BlockConfig(d_ff=17, dropout=0.1),
                num_layers=2,
                vocabulary=7,
                max_tokens=5,
                classes=7,
            ),
            training=TrainingConfig(
                steps=13,
                batch_size=4,
                optimizer=OptimizerConfig(name="adamw", learning_rate=3e-3, weight_decay=0.1),
                schedule=ScheduleConfig(name="cosine_warmup", warmup_steps=3),
                evaluate_every=5,
                log_every=2,
            ),
        ),
    ),
    variants=("QKV", "(Q=K-V)+"),
    seeds=(11,),
)
