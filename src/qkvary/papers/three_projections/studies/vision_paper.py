"""Image classification as described in the papers, with the splits of their code and clean ones."""

from dataclasses import replace

from qkvary.papers.key_value.protocols import SYNTHETIC_VARIANTS
from qkvary.papers.key_value.vision import PUBLISHED_TABLES, vision_grid
from qkvary.papers.recomputation import published_tables
from qkvary.studies.study import Setting, Study
from qkvary.tasks.image_config import ImageSplits

_WHAT = (
    "MNIST, FashionMNIST (20 epochs), CIFAR-10 (40) and CIFAR-100 (50) as in the text of papers 1 "
    "and 2: patches of 4 and 7 pixels, widths 64, 256, 512, layers 2, 4, heads 2, 4, learning "
    "rates 1e-3, 1e-4, Adam, scores divided by the square root of a head's width, two runs. "
    "Patches of 7 do not divide the 32 pixels of CIFAR: patches of 8 are used there, as in the "
    "code. The text names MultiStepLR without its steps: the learning rate is constant here, as it "
    "is in the code. Batches, augmentation and the rest of the network are the code's. "
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
    question="Which variants classify images as well as QKV over the papers' configurations?",
    description=_WHAT
    + "The text does not say what validation is on: 5,000 training images are held out. Each run "
    "is validated twice per epoch, and its best network is tested.",
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
        + "Validation as in the code: on the test images for MNIST and FashionMNIST; for CIFAR, on "
        "images of which nine in ten are also training images.",
        settings=_grid("as-published"),
    ),
}
