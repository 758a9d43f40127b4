"""Networks and training for finding the odd image in a set (set anomaly). Torch-free."""

from dataclasses import replace

from qkvary.arch.networks import EncoderConfig
from qkvary.papers.key_value.protocols import synthetic_network
from qkvary.studies.study import Setting
from qkvary.tasks.image_config import AnomalyOrder, AnomalyTaskConfig
from qkvary.training.config import OptimizerConfig, ScheduleConfig, TestAt, TrainingConfig

PLUS_FEATURES = 50
"""Number of channels of the 2D sinusoid of ``+`` in the vision experiments."""
SETS_PER_STEP = 64


def set_network(
    task: AnomalyTaskConfig, *, d_model: int, num_layers: int, num_heads: int
) -> EncoderConfig:
    """Return the encoder of the synthetic experiments, for image features and without positions.

    Source: the text of papers 1 and 2; the notebook of this experiment could not be read.
    """
    network = synthetic_network(
        d_model=d_model, num_layers=num_layers, num_heads=num_heads, length=task.set_size
    )
    attention = network.layers[0]
    position = replace(attention.position, plus_features=PLUS_FEATURES)
    return replace(
        network,
        attention=replace(attention, position=position),
        vocabulary=task.width,
        classes=1,
        positions="none",
        input_dropout=0.1,
        reads_vectors=True,
    )


def set_training(
    *, steps: int, evaluate_every: int, learning_rate: float, test_at: TestAt
) -> TrainingConfig:
    """Return settings of Adam, a cosine schedule, 100 warm-up steps and clipping at norm 2."""
    return TrainingConfig(
        steps=steps,
        batch_size=SETS_PER_STEP,
        optimizer=OptimizerConfig(name="adam", learning_rate=learning_rate, gradient_clip=2.0),
        schedule=ScheduleConfig(name="cosine_warmup", warmup_steps=100),
        evaluate_every=evaluate_every,
        test_at=test_at,
    )


def published_grid(order: AnomalyOrder) -> tuple[Setting, ...]:
    """Return the published settings: widths 256 and 512, 2 or 4 layers and heads, 20 epochs."""
    task = AnomalyTaskConfig(features="cifar100-resnet34", order=order)
    per_epoch = 45_000 // SETS_PER_STEP
    return tuple(
        Setting(
            name=f"anomaly-d{width}-L{layers}-H{heads}",
            task=task,
            network=set_network(task, d_model=width, num_layers=layers, num_heads=heads),
            training=set_training(
                steps=20 * per_epoch, evaluate_every=per_epoch, learning_rate=5e-4, test_at="best"
            ),
        )
        for width in (256, 512)
        for layers in (2, 4)
        for heads in (2, 4)
    )
