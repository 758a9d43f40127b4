"""Loads features of images for tasks about sets of images; a fixed network computed them.

``cifar100-50`` comes with the package. It covers the 50 odd-numbered classes of CIFAR-100, with 100
training and 20 test images per class. A small network that was trained on the other 50 classes
computed the features (``studies/ours/anomaly-features``). ``cifar100-resnet34`` has ResNet-34
features of all of CIFAR-100, as published; ``qkvary data features`` makes it. ``noise`` consists of
random vectors that do not come from images.
"""

import functools
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from qkvary.data.checksums import CIFAR100_FEATURES_SHA256
from qkvary.data.feature_sets import FEATURE_SETS, FeatureSet, find_features
from qkvary.data.images import find_images
from qkvary.data.rows import random_words
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import read_file

PACKAGED = Path(__file__).parent / "cifar100_features.safetensors"
LARGEST_FILE = 2**28


class ImageFeatures(NamedTuple):
    """The features of a set of images, ``[classes, images of a class, width]``."""

    train: NDArray[np.float32]
    test: NDArray[np.float32]


def group_by_class(images: NDArray[Any], labels: NDArray[np.int64]) -> NDArray[Any]:
    """Return images ``[count, ...]`` by class, in order: ``[classes, images of a class, ...]``."""
    order = np.argsort(labels, kind="stable")
    return images[order].reshape(labels.max() + 1, -1, *images.shape[1:])


def encode_features(features: ImageFeatures) -> bytes:
    """Return the bytes of a file of features, in half precision."""
    return save({name: part.astype(np.float16) for name, part in features._asdict().items()})


@functools.lru_cache(maxsize=2)
def load_features(name: str, sha256: str | None = None) -> ImageFeatures:
    """Return a set of features; ``sha256`` is the checksum of features made on this machine."""
    about = FEATURE_SETS[name]
    if about.name == "noise":
        return _draw_noise(about)
    path = find_features(name) if about.is_made_here else PACKAGED
    if path is None:
        raise UsageError(
            f"{name} is not on this machine: run `qkvary data features --weights FOLDER` with a "
            "folder that has the weights of ResNet-34 (microsoft/resnet-34)"
        )
    data = read_file(path, limit=LARGEST_FILE)
    found = hashlib.sha256(data).hexdigest()
    if not about.is_made_here and found != CIFAR100_FEATURES_SHA256:
        raise DamagedError(f"the packaged file {path.name} is damaged; reinstall qkvary")
    features = decode_features(about, data, path)
    if about.is_made_here and found != sha256:
        raise UsageError(
            f"expected features in {path} with the sha256 that the task names, {sha256}, got "
            f"{found}: these features were computed with different weights or on a different "
            "machine"
        )
    return features


@functools.lru_cache(maxsize=2)
def find_pictures(name: str) -> dict[str, NDArray[np.uint8]] | None:
    """Return the ``train`` and ``test`` images of a feature set, in the order of its features.

    Each array is ``[classes, images of a class, channels, rows, columns]``. The result is None if
    the set has no images or the images are not on this machine.
    """
    about = FEATURE_SETS[name]
    loaded = None if about.images is None else find_images(about.images)
    if loaded is None:
        return None
    return {
        split: group_by_class(part.pixels, part.labels)[about.labels]
        for split, part in (("train", loaded.train), ("test", loaded.test))
    }


def decode_features(about: FeatureSet, data: bytes, path: Path) -> ImageFeatures:
    """Return the features in the bytes of a file, after checking their shapes and values."""
    try:
        tensors = load(data)
    except (SafetensorError, ValueError) as error:
        raise DamagedError(f"{path} is not a file of features: {error}") from None
    shapes = {
        "train": (about.classes, about.train_images, about.width),
        "test": (about.classes, about.test_images, about.width),
    }
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if found != shapes or not all(np.isfinite(tensor).all() for tensor in tensors.values()):
        raise DamagedError(f"expected finite features of {shapes} in {path}, got {found}")
    parts = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
    for tensor in parts.values():
        tensor.flags.writeable = False
    return ImageFeatures(**parts)


def _draw_noise(about: FeatureSet) -> ImageFeatures:
    """Return random features that do not depend on the class: uniform with variance 1."""

    def draw(split: str, images: int) -> NDArray[np.float32]:
        shape = (about.classes, images, about.width)
        words = random_words(int(np.prod(shape)), "noise features", split)
        uniform = words.astype(np.float64) / 2.0**64 - 0.5
        tensor = (uniform * np.sqrt(12.0)).astype(np.float32).reshape(shape)
        tensor.flags.writeable = False
        return tensor

    return ImageFeatures(draw("train", about.train_images), draw("test", about.test_images))
