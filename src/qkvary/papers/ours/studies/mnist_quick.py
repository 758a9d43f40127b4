"""Trains a vision transformer on the digits of MNIST in minutes."""

from qkvary.papers.key_value.vision import quick_protocols

PROTOCOLS = quick_protocols(
    "mnist-quick",
    "mnist",
    patch_size=7,
    batch_size=50,
    steps=3_000,
    learning_rate=4e-3,
)
STUDY = PROTOCOLS["clean"]
