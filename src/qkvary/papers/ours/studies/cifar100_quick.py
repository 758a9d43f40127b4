"""Trains a vision transformer on 10,000 images of CIFAR-100 in minutes."""

from qkvary.papers.key_value.vision import quick_protocols

PROTOCOLS = quick_protocols(
    "cifar100-quick",
    "cifar100-10k",
    patch_size=8,
    batch_size=64,
    steps=3_000,
    learning_rate=2e-3,
    validation_images=1_000,
)
STUDY = PROTOCOLS["clean"]
