"""Finds the odd image in sets of CIFAR-100 images, as papers 1 and 2 describe the task.

The authors' notebook for this task could not be read.
"""

from dataclasses import replace

from qkvary.papers.key_value.protocols import SYNTHETIC_VARIANTS
from qkvary.papers.key_value.set_anomaly import published_grid
from qkvary.papers.recomputation import published_tables
from qkvary.studies.study import Study

_WHAT = (
    "A set has ten images of CIFAR-100, given as features of a ResNet-34 trained on ImageNet. Nine "
    "images show one class, and {}. Networks have width 256 or 512, 2 or 4 layers and 2 or 4 "
    "heads. They train for 20 epochs in two runs, and the network with the best validation "
    "accuracy is tested. The papers do not say how many channels the 2D encoding (+) has in this "
    "task; this study uses 50 channels, as the papers do for images."
)

STUDY = Study(
    name="anomaly-paper",
    question=(
        "Which of ten images is the odd one out, and do networks with shared projections still "
        "find it?"
    ),
    description=_WHAT.format(
        "the last image always shows a different class, as in a tutorial in the public code "
        "(the papers do not say where it is), so a network that knows positions can answer "
        "without looking at the images"
    ),
    settings=published_grid("last"),
    variants=SYNTHETIC_VARIANTS,
    seeds=(0, 1),
    published=published_tables("three-projections-table-3", "key-value-table-3"),
)
PROTOCOLS = {
    "as-published": STUDY,
    "clean": replace(
        STUDY,
        name="anomaly-paper-clean",
        description=_WHAT.format("the tenth image, at a random place, shows a different class"),
        settings=published_grid("shuffled"),
        published=(),
    ),
}
