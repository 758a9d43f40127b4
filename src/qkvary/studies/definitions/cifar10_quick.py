"""15,000 images of CIFAR-10 with a vision transformer that is trained in minutes."""

from functools import partial

from qkvary.studies.vision import quick_study

_study = partial(
    quick_study,
    name="cifar10-15k",
    patch_size=8,
    batch_size=64,
    steps=4_000,
    learning_rate=2e-3,
    validation_images=1_500,
)

STUDY = _study("cifar10-quick", splits="clean")
PROTOCOLS = {
    "clean": STUDY,
    "as-published": _study("cifar10-quick-as-published", splits="as-published"),
}
