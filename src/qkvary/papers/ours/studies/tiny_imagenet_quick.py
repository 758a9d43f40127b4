"""Trains a vision transformer on 20 classes of Tiny ImageNet in minutes."""

from qkvary.papers.key_value.vision import quick_protocols

PROTOCOLS = quick_protocols(
    "tiny-imagenet-quick",
    "tiny-imagenet-20",
    patch_size=16,
    batch_size=64,
    steps=3_000,
    learning_rate=2e-3,
    validation_images=1_000,
)
STUDY = PROTOCOLS["clean"]
