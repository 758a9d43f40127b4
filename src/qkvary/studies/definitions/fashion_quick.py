"""Clothes of FashionMNIST with a vision transformer that is trained in a minute."""

from functools import partial

from qkvary.studies.vision import quick_study

_study = partial(
    quick_study,
    name="fashion-mnist",
    patch_size=7,
    batch_size=50,
    steps=4_000,
    learning_rate=4e-3,
)

STUDY = _study("fashion-quick", splits="clean")
PROTOCOLS = {
    "clean": STUDY,
    "as-published": _study("fashion-quick-as-published", splits="as-published"),
}
