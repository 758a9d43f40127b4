"""Trains image classifiers as in paper 2's code, with the code's splits and with clean splits."""

from dataclasses import replace

from qkvary.papers.key_value.protocols import SYNTHETIC_VARIANTS
from qkvary.papers.key_value.vision import PUBLISHED_TABLES, vision_grid
from qkvary.papers.recomputation import published_tables
from qkvary.studies.study import Setting, Study
from qkvary.tasks.image_config import ImageSplits

_WHAT = (
    "Networks are trained as in the code of paper 2 (Key-Value Transformer), for 20 epochs on "
    "MNIST and on FashionMNIST, for 40 epochs on CIFAR-10 and for 50 epochs on CIFAR-100. The "
    "optimizer is AdamW with torch's weight decay of 0.01. The learning rate is constant, because "
    "the code lowers it only after 100 epochs. Scores are divided by the square root of the width. "
    "Patches have 7 or 4 pixels for MNIST and FashionMNIST, and 8 pixels for CIFAR. Widths are 64, "
    "256 and 512; networks have 2 or 4 layers and 2 or 4 heads; learning rates are 1e-3 and 1e-4. "
    "Each configuration has two runs. Each run is validated twice per epoch, and its best network "
    "is tested. "
)


def _grid(splits: ImageSplits) -> tuple[Setting, ...]:
    return vision_grid(
        splits,
        patches={"mnist": (7, 4), "fashion-mnist": (7, 4), "cifar10": (8,), "cifar100": (8,)},
        optimizer="adamw",
        weight_decay=0.01,
        scale="width",
    )


STUDY = Study(
    name="vision-published",
    question="Are the published accuracies of image classification reproduced?",
    description=_WHAT
    + "As published, MNIST and FashionMNIST are validated on the test images, so the printed "
    "accuracy is the best accuracy on the test images. For CIFAR, 45,000 training and 5,000 "
    "validation images are drawn independently, so nine of ten validation images are also training "
    "images. The published draws have no seed; in this study, all runs have the same draw.",
    settings=_grid("as-published"),
    variants=SYNTHETIC_VARIANTS,
    seeds=(0, 1),
    published=published_tables(*PUBLISHED_TABLES),
)
ONE_OF_MANY = (
    "This is one of the 48 published configurations. The published numbers are means over all 48, "
    "with a standard deviation over configurations of 0.002."
)
PROTOCOLS = {
    "as-published": STUDY,
    "clean": replace(
        STUDY,
        name="vision-published-clean",
        description=_WHAT
        + "In this clean version, 5,000 training images are held out for validation. Nothing else "
        "is changed.",
        settings=_grid("clean"),
    ),
    "part": replace(
        STUDY,
        name="vision-published-part",
        question="Are the published accuracies on MNIST reproduced?",
        description=(
            "The smallest network in the code of paper 2 (Key-Value Transformer) is trained on "
            "MNIST at the larger of the code's learning rates. It has patches of 7 pixels, width "
            "64, two layers and two heads, and divides scores by the square root of the width. It "
            "is trained in two runs of 20 epochs, with AdamW, torch's weight decay of 0.01 and a "
            "constant learning rate. As published, it is validated on the test images twice per "
            "epoch, and the best result is reported."
        ),
        settings=tuple(
            replace(setting, limits=(*setting.limits, ONE_OF_MANY))
            for setting in STUDY.settings
            if setting.name == "mnist-p7-d64-L2-H2-lr0.001"
        ),
    ),
}
