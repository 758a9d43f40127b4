"""Trains a vision transformer on 15,000 images of CIFAR-10 in minutes."""

from qkvary.papers.key_value.vision import quick_protocols

PROTOCOLS = quick_protocols(
    "cifar10-quick",
    "cifar10-15k",
    patch_size=8,
    batch_size=64,
    steps=4_000,
    learning_rate=2e-3,
    validation_images=1_500,
)
STUDY = PROTOCOLS["clean"]
