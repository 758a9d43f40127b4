"""Lists sets of image features: sizes, origin and files. Imports neither numpy nor torch."""

import hashlib
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from qkvary.data.checksums import CIFAR100_FEATURES_SHA256, FEATURES_MADE_HERE
from qkvary.data.files import find_file
from qkvary.data.image_sets import IMAGE_SETS, ImageSetName
from qkvary.storage.environment import cache_directory
from qkvary.storage.errors import UsageError

FOLDER = "features"
"""The folder of the files, in ``QKVARY_DATA`` or in the cache."""
FeatureSetName = Literal["cifar100-50", "cifar100-resnet34", "noise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSet:
    """A set of image features."""

    name: FeatureSetName
    classes: int
    train_images: int
    """Number of images per class for training and validation."""
    test_images: int
    """Number of images per class for the test."""
    width: int
    images: ImageSetName | None
    labels: slice
    """The classes of the image data set that the feature set covers, in the same order."""
    origin: str
    """The checksum of the features. If ``qkvary data features`` computes them on this machine, the
    name of the network that it uses."""

    @property
    def is_made_here(self) -> bool:
        """Whether ``qkvary data features`` computes the features."""
        return self.name == FEATURES_MADE_HERE

    @property
    def fingerprint(self) -> str:
        """sha256 of the origin; it does not identify features that are computed on this machine."""
        parts = ["image features", self.name, self.origin]
        if self.is_made_here and self.images is not None:
            parts.append(IMAGE_SETS[self.images].fingerprint)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


FEATURE_SETS: dict[str, FeatureSet] = {
    "cifar100-50": FeatureSet(
        name="cifar100-50",
        classes=50,
        train_images=100,
        test_images=20,
        width=64,
        images="cifar100-10k",
        # The small network was trained on the even classes.
        labels=slice(1, None, 2),
        origin=CIFAR100_FEATURES_SHA256,
    ),
    "cifar100-resnet34": FeatureSet(
        name="cifar100-resnet34",
        classes=100,
        train_images=500,
        test_images=100,
        width=512,
        images="cifar100",
        labels=slice(None),
        origin="microsoft/resnet-34",
    ),
}
FEATURE_SETS["noise"] = replace(
    FEATURE_SETS["cifar100-50"], name="noise", images=None, labels=slice(None), origin="uniform 1"
)


def find_features(name: str) -> Path | None:
    """Return the file of a set on this machine, or None if there is no such file."""
    return find_file(FOLDER, [f"{name}.safetensors"])


def features_path(name: str) -> Path:
    """Return the path at which ``qkvary data features`` writes a set."""
    folder = cache_directory()
    if folder is None:
        raise UsageError("expected a cache directory for features, got none: set QKVARY_CACHE")
    return folder / FOLDER / f"{name}.safetensors"


def hash_features(name: str) -> str | None:
    """Return the sha256 of features that were computed on this machine.

    The result is None for packaged or random features, and if there is no readable file.
    """
    path = find_features(name) if FEATURE_SETS[name].is_made_here else None
    if path is not None:
        with suppress(OSError), path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return None
