"""Finds the odd image in a set, and measures what the position of that image reveals."""

from collections.abc import Mapping

from qkvary.data.feature_sets import FeatureSetName
from qkvary.papers.key_value.protocols import SYNTHETIC_VARIANTS
from qkvary.papers.key_value.set_anomaly import set_network, set_training
from qkvary.studies.study import Setting, Study
from qkvary.tasks.image_config import AnomalyOrder, AnomalyTaskConfig

LAST = (
    "If the anomaly is always the last image, a network that knows positions can answer "
    "without looking at the images. The setting with noise shows how accurate such answers are."
)
SMALL = (
    "All variants have the same network size and learning rate, and the features come from a small "
    "network, not from ResNet-34 as in the papers. The results show what sharing costs in this "
    "case. Three seeds detect only large differences."
)

_SETTINGS: Mapping[str, tuple[FeatureSetName, AnomalyOrder, int, str | None]] = {
    "shuffled": ("cifar100-50", "shuffled", 1_400, None),
    "always last": ("cifar100-50", "last", 1_400, "always last"),
    "noise, always last": ("noise", "last", 700, "noise, always last"),
    "noise, shuffled": ("noise", "shuffled", 700, "noise, shuffled"),
}
"""Features, order, steps and table of each setting."""


def _setting(name: str) -> Setting:
    features, order, steps, table = _SETTINGS[name]
    task = AnomalyTaskConfig(features=features, order=order)
    return Setting(
        name=name,
        task=task,
        network=set_network(task, d_model=64, num_layers=2, num_heads=4),
        training=set_training(steps=steps, evaluate_every=140, learning_rate=1e-3, test_at="last"),
        table=table,
        limits=(SMALL,) if table is None else (LAST,),
    )


STUDY = Study(
    name="anomaly-quick",
    question=(
        "Which of ten images is the odd one out, and how well can a network answer from the "
        "position of that image alone?"
    ),
    description=(
        "A set has nine images of one class and one image of another class, out of 50 classes "
        "of CIFAR-100. The image features come from a small network that was trained on the "
        "other 50 classes. The encoder has two layers of width 64 and no position embeddings. "
        "Guessing scores 0.10. Shuffled sets are compared with sets in which the anomaly is "
        "always the last image, and sets of images are compared with sets of pure noise."
    ),
    settings=tuple(map(_setting, _SETTINGS)),
    variants=SYNTHETIC_VARIANTS,
    seeds=(0, 1, 2),
)
