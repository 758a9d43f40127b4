"""Defines the configurations of image tasks, with the fingerprints of their data. Torch-free."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

from qkvary.arch.canonical import ADDED_LATER, stored
from qkvary.arch.networks import Network, VisionTransformerConfig
from qkvary.data.catalog import data_module
from qkvary.data.feature_sets import FEATURE_SETS, FeatureSetName
from qkvary.data.image_sets import IMAGE_SETS, ImageSet, OwnImages
from qkvary.tasks.config_parts import Accuracy, TaskConfig, digest

ImageSplits = Literal["clean", "as-published"]
AnomalyOrder = Literal["shuffled", "last"]


@stored("ImageTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTaskConfig(Accuracy):
    """Predict the class of an image.

    Source: Borji 2023, section 3.2, and its public code; Kayyam et al. 2026, section 3.2.
    """

    module: ClassVar[str] = "qkvary.tasks.images"
    name: str
    """Name of the data set. A user's own images can have any other name."""
    splits: ImageSplits = "clean"
    """``clean`` takes ``validation_images`` out of the training images. ``as-published`` follows
    paper 2's code: MNIST and FashionMNIST are validated on the test images. For CIFAR, training and
    validation images are drawn independently, so that nine of ten validation images are trained on.
    Tiny ImageNet, whose printed results have no public code, is validated on the test images."""
    validation_images: int = 5_000
    """Number of validation images. If the test images are used for validation, all of them are, and
    this number is ignored."""
    augment: bool = False
    """Whether to flip and crop training images at random."""
    resize_to: int | None = field(default=None, metadata=ADDED_LATER)
    """Height and width in pixels to which images are resized when they are batched. If None,
    images keep their size."""
    evaluation_batch_size: int = 500
    own: OwnImages | None = field(default=None, metadata=ADDED_LATER)
    """A user's own images, as ``data.own_images.describe_images`` returns them."""

    def __post_init__(self) -> None:
        TaskConfig.__post_init__(self)
        if self.own is None and self.name not in IMAGE_SETS:
            raise ValueError(
                f"expected an image data set, got {self.name!r}; choices: {', '.join(IMAGE_SETS)}; "
                "images of your own need own=describe_images(FOLDER) of qkvary.data.own_images"
            )
        if self.own is not None and (self.name in IMAGE_SETS or self.splits != "clean"):
            raise ValueError(
                "expected a name that no image data set has, and splits='clean', for images of "
                f"your own, got {self.name!r} and {self.splits!r}"
            )
        if self.validation_images >= self.images.train_images:
            raise ValueError(
                f"task {self.name}: expected fewer validation_images than the "
                f"{self.images.train_images:,} images, got {self.validation_images:,}"
            )

    @property
    def images(self) -> ImageSet:
        """The data set."""
        return IMAGE_SETS[self.name] if self.own is None else self.own.as_set(self.name)

    @property
    def image_size(self) -> int:
        """Height and width, in pixels, of the images that the network receives."""
        return self.images.pixels.size if self.resize_to is None else self.resize_to

    @property
    def data_fingerprint(self) -> str:
        """Fingerprint of the data set."""
        return self.images.fingerprint

    def count_tokens(self, network: Network) -> int:
        """Return the number of tokens: one for each patch of an image, and the class token."""
        if isinstance(network, VisionTransformerConfig):
            return network.tokens
        raise ValueError(f"expected a VisionTransformerConfig for task {self.name}, got {network}")

    def check_data(self, report: Callable[[str], None]) -> None:
        """Check the images; download missing images of a known data set."""
        del report
        if self.own is None:
            # The undecorated function does not keep the images in memory.
            data_module("images").load_images.__wrapped__(self.name)
        else:
            data_module("own_images").load_own_images(self.own)


@stored("AnomalyTaskConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class AnomalyTaskConfig(Accuracy):
    """Find the one image of a set that does not belong to the class of the remaining images.

    Source: Borji 2023, section 3.2; Kayyam et al. 2026, section A.3.
    """

    module: ClassVar[str] = "qkvary.tasks.anomaly"
    name: Literal["anomaly"] = "anomaly"
    features: FeatureSetName
    order: AnomalyOrder = "shuffled"
    """Position of the anomaly in a set: ``shuffled``, or always ``last``, as in a tutorial in the
    public code. With ``last``, a network with positions can simply learn to choose the last
    image."""
    set_size: int = 10
    data_seed: int = 42
    """Seed from which the validation and test sets are drawn."""
    evaluation_batch_size: int = 500
    features_sha256: str | None = field(default=None, metadata=ADDED_LATER)
    """sha256 of the file of features, if this machine computed them. If missing, it is computed
    from the file when a study is loaded."""

    def __post_init__(self) -> None:
        TaskConfig.__post_init__(self)
        if self.features_sha256 is not None and not FEATURE_SETS[self.features].is_made_here:
            raise ValueError(
                f"task anomaly: expected features_sha256=None for {self.features}, whose features "
                f"are fixed, got {self.features_sha256}"
            )
        if self.set_size < 3:
            raise ValueError(f"task anomaly: set_size must be at least 3, got {self.set_size}")

    @property
    def width(self) -> int:
        """Number of features that describe an image."""
        return FEATURE_SETS[self.features].width

    @property
    def sequence_length(self) -> int:
        """The number of images in a set. Costs are computed from this number."""
        return self.set_size

    @property
    def data_fingerprint(self) -> str:
        """sha256 of the features and the settings that determine the sets."""
        return digest(
            "anomaly",
            1,
            FEATURE_SETS[self.features].fingerprint,
            self.order,
            self.set_size,
            self.data_seed,
            *filter(None, [self.features_sha256]),
        )

    def count_answers(self, network: Network) -> int:
        """Return the number of images in a set; one of them is the answer."""
        del network
        return self.set_size

    def pinned(self) -> Self:
        """Return the task with the sha256 of its features, if this machine computed them."""
        if self.features_sha256 is not None:
            return self
        found = data_module("feature_sets").hash_features(self.features)
        return replace(self, features_sha256=found)

    def check_data(self, report: Callable[[str], None]) -> None:
        """Check the features.

        Also check the images that samples show, if these images are on this machine.
        """
        del report
        data_module("image_features").load_features(self.features, self.features_sha256)
        if shown := FEATURE_SETS[self.features].images:
            data_module("images").find_images(shown)
