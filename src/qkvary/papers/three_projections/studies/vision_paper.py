"""Trains image classifiers as the papers describe, with their splits and with clean splits."""

from dataclasses import replace

from qkvary.papers.key_value.protocols import SYNTHETIC_VARIANTS
from qkvary.papers.key_value.vision import PUBLISHED_TABLES, vision_grid
from qkvary.papers.recomputation import published_tables
from qkvary.studies.study import Setting, Study
from qkvary.tasks.image_config import ImageSplits

_WHAT = (
    "Networks are trained as in the text of papers 1 (Do Transformers Need Three Projections?) and "
    "2 (Key-Value Transformer). Training takes 20 epochs on MNIST and on FashionMNIST, 40 epochs "
    "on CIFAR-10 and 50 epochs on CIFAR-100. The text lists patches of 4 and 7 pixels, widths 64, "
    "256 and 512, 2 or 4 layers, 2 or 4 heads, and learning rates 1e-3 and 1e-4. The optimizer is "
    "Adam, scores are divided by the square root of a head's width, and there are two runs. "
    "Patches of 7 pixels do not divide the 32 pixels of CIFAR, so patches of 8 pixels are used "
    "there, as in the code. The text names MultiStepLR without its steps, so the learning rate is "
    "constant, as in the code. Batches, augmentation and the rest of the network are also those of "
    "the code. "
)


def _grid(splits: ImageSplits) -> tuple[Setting, ...]:
    return vision_grid(
        splits,
        patches={
            "mnist": (4, 7),
            "fashion-mnist": (4, 7),
            "cifar10": (4, 8),
            "cifar100": (4, 8),
        },
        optimizer="adam",
        weight_decay=0.0,
        scale="head",
    )


STUDY = Study(
    name="vision-paper",
    question="Which variants classify images as well as QKV in the papers' configurations?",
    description=_WHAT
    + "The text does not say which images are for validation. In this study, 5,000 training images "
    "are held out. Each run is validated twice per epoch, and its best network is tested.",
    settings=_grid("clean"),
    variants=SYNTHETIC_VARIANTS,
    seeds=(0, 1),
    published=published_tables(*PUBLISHED_TABLES),
)
PROTOCOLS = {
    "clean": STUDY,
    "as-published": replace(
        STUDY,
        name="vision-paper-as-published",
        description=_WHAT
        + "Networks are validated as in the code. For MNIST and FashionMNIST, the validation "
        "images are the test images. For CIFAR, nine in ten validation images are also training "
        "images.",
        settings=_grid("as-published"),
    ),
}
