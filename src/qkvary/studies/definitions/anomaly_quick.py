"""Set anomaly with features that come with the package, and what the published order gives away."""

from qkvary.studies.protocols import SYNTHETIC_VARIANTS
from qkvary.studies.set_anomaly import set_network, set_training
from qkvary.studies.study import Setting, Study
from qkvary.tasks.config import AnomalyTaskConfig

LAST = (
    "Where the anomaly is always the last image, a network that knows positions can answer "
    "without looking at the images; noise shows how much of its accuracy that is."
)


def _setting(name: str, task: AnomalyTaskConfig, *, steps: int, table: str | None) -> Setting:
    return Setting(
        name=name,
        task=task,
        network=set_network(task, d_model=64, num_layers=2, num_heads=4),
        training=set_training(steps=steps, evaluate_every=140, learning_rate=1e-3, test_at="last"),
        table=table,
        limits=() if table is None else (LAST,),
    )


STUDY = Study(
    name="anomaly-quick",
    question="Which of ten images is the odd one out, and what does its place give away?",
    description=(
        "Nine images of one class and one of another, out of 50 classes of CIFAR-100 that a small "
        "network describes; it learned the other 50 classes. Two layers of width 64 without "
        "positions, so that chance is 0.10. The published order, with the anomaly always last, and "
        "pure noise instead of images stand beside the repaired one."
    ),
    settings=(
        _setting("shuffled", AnomalyTaskConfig(features="cifar100-50"), steps=1_400, table=None),
        _setting(
            "always last",
            AnomalyTaskConfig(features="cifar100-50", order="last"),
            steps=1_400,
            table="always last, as published",
        ),
        _setting(
            "noise, always last",
            AnomalyTaskConfig(features="noise", order="last"),
            steps=700,
            table="noise, always last",
        ),
        _setting(
            "noise, shuffled",
            AnomalyTaskConfig(features="noise"),
            steps=700,
            table="noise, shuffled",
        ),
    ),
    variants=SYNTHETIC_VARIANTS,
    seeds=(0, 1, 2),
)
