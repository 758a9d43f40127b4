"""The configuration of image classification. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from qkvary.arch.canonical import ADDED_LATER, stored
from qkvary.data.image_sets import IMAGE_SETS, ImageSet, ImageSetName

ImageSplits = Literal["clean", "as-published"]
"""``clean`` holds validation images out; ``as-published`` validates on the test images, or on
images that are mostly trained on too."""


@stored("ImageTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTaskConfig:
    """Predict the class of an image.

    Source: Borji 2023, section 3.2, and its public code; Kayyam et al. 2026, section 3.2.
    """

    name: ImageSetName
    """The data set."""
    splits: ImageSplits = "clean"
    """``clean`` holds ``validation_images`` out of the training images. ``as-published`` does what
    the code of paper 2 does: MNIST and FashionMNIST validate on the test images, and CIFAR draws
    training and validation images apart from each other, so that nine of ten validation images are
    trained on. Tiny ImageNet, of which there is no code, is validated on what is tested."""
    validation_images: int = 5_000
    """Validation images; where validation is on the test images, all of those instead."""
    augment: bool = False
    """Whether to flip and crop training images at random."""
    resize_to: int | None = field(default=None, metadata=ADDED_LATER)
    """Rows and columns to which images are resized when they are batched; None for their own."""
    evaluation_batch_size: int = 500
    """Images per forward pass of an evaluation."""

    def __post_init__(self) -> None:
        if self.name not in IMAGE_SETS:
            raise ValueError(
                f"unknown image data set {self.name!r}; choices: {', '.join(IMAGE_SETS)}"
            )
        if self.splits not in get_args(ImageSplits):
            choices = ", ".join(get_args(ImageSplits))
            raise ValueError(f"unknown splits {self.splits!r}; choices: {choices}")
        for field_name in ("validation_images", "evaluation_batch_size", "image_size"):
            value: int = getattr(self, field_name)
            if value < 1:
                raise ValueError(f"task {self.name}: {field_name} must be at least 1, got {value}")
        if self.validation_images >= self.images.train_images:
            raise ValueError(
                f"task {self.name}: expected fewer validation_images than the "
                f"{self.images.train_images:,} images, got {self.validation_images:,}"
            )

    @property
    def images(self) -> ImageSet:
        """The data set."""
        return IMAGE_SETS[self.name]

    @property
    def image_size(self) -> int:
        """Rows and columns of an image when the network reads it."""
        return self.images.pixels.size if self.resize_to is None else self.resize_to

    @property
    def metric(self) -> str:
        """The headline metric."""
        return "accuracy"

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger headline metric is better."""
        return True

    @property
    def data_fingerprint(self) -> str:
        """Fingerprint of the data set."""
        return self.images.fingerprint
