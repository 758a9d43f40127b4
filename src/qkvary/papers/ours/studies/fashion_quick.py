"""Trains a vision transformer on the clothes of FashionMNIST in minutes."""

from qkvary.papers.key_value.vision import quick_protocols

PROTOCOLS = quick_protocols(
    "fashion-quick",
    "fashion-mnist",
    patch_size=7,
    batch_size=50,
    steps=4_000,
    learning_rate=4e-3,
)
STUDY = PROTOCOLS["clean"]
