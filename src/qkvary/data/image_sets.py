"""Lists image data sets: shape, files, checksums and origin. Imports neither numpy nor torch.

A subset is a separate data set, whose name contains its number of images or classes. Results on a
subset are not compared with published results. Checksums are those of the uncompressed files.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from qkvary.arch.canonical import NOT_IDENTIFYING, stored

ImageSetName = Literal[
    "mnist",
    "fashion-mnist",
    "cifar10",
    "cifar10-15k",
    "cifar100",
    "cifar100-10k",
    "tiny-imagenet",
    "tiny-imagenet-20",
]
ImageFormat = Literal["idx", "cifar", "folders", "own"]
"""``idx``: one file of images and one of labels. ``cifar``: records of a label and pixels.
``folders``: one JPEG file per image, in folders or in an archive of them. ``own``: a folder that
``data.own_images`` reads."""


ARCHIVES = {
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz": (
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
    ),
    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz": (
        "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"
    ),
    "https://cs231n.stanford.edu/tiny-imagenet-200.zip": (
        "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821"
    ),
}
"""The sha256 of each archive, by its URL."""
CLASS_NAMES = {
    "fashion-mnist": (
        "T-shirt, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot"
    ),
    "cifar10": "airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck",
}
"""The names of the classes, by data set; classes of other sets have numbers only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """The size and the statistics of the images of a data set."""

    size: int
    """Height and width in pixels."""
    mean: tuple[float, ...]
    """The mean of each channel that paper 2's code uses, for pixels in [0, 1]."""
    std: tuple[float, ...]
    """The standard deviation of each channel that paper 2's code uses."""

    @property
    def channels(self) -> int:
        """1 for grey, 3 for red, green and blue."""
        return len(self.mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSet:
    """A data set of labelled images of one size."""

    name: str
    title: str
    """The name in prose."""
    format: ImageFormat
    folder: str
    """The folder in ``QKVARY_DATA`` or in the cache."""
    train: Mapping[str, str]
    """The sha256 of each training file, by file name and in order. With the format ``folders``, the
    name is that of the archive without its suffix, and the sha256 is that of the first 20 classes
    (``data.tiny_imagenet.digest_classes``)."""
    test: Mapping[str, str]
    """The sha256 of each test file, as in ``train``."""
    pixels: Pixels
    classes: int
    train_images: int
    test_images: int
    origin: str | None = None
    """The URL of the folder of the files, or of their archive; None for a subset."""
    part_of: ImageSetName | None = None
    """The complete data set that this subset belongs to; None if this set is complete itself."""

    @property
    def files(self) -> Mapping[str, str]:
        """All files with their sha256."""
        return {**self.train, **self.test}

    @property
    def archive_sha256(self) -> str | None:
        """The sha256 of the archive, if one archive holds all files."""
        return ARCHIVES.get(self.origin or "")

    @property
    def fingerprint(self) -> str:
        """The sha256 of the checksums of all files."""
        splits = (("train", self.train), ("test", self.test))
        parts = [f"{split} {sha256}" for split, files in splits for sha256 in files.values()]
        if self.format == "folders":
            parts.append(f"{self.classes} classes")
        return hashlib.sha256("\n".join(("images", self.format, *parts)).encode()).hexdigest()

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes; empty if classes are shown as numbers."""
        names = CLASS_NAMES.get(self.part_of or self.name)
        return () if names is None else tuple(names.split(", "))

    @property
    def validates_on_test(self) -> bool:
        """Whether published experiments use the test images of this set for validation."""
        return self.format != "cifar"


@stored("OwnImages")
@dataclass(frozen=True, slots=True, kw_only=True)
class OwnImages:
    """The user's own images; ``data.own_images.describe_images`` makes this from a folder."""

    data: str = field(metadata=NOT_IDENTIFYING)
    """The folder of the images. The folder is not part of a run's identity."""
    data_sha256: str
    classes: tuple[str, ...]
    size: int
    """Height and width in pixels."""
    mean: tuple[float, ...]
    """The mean of each channel of the training images, for pixels in [0, 1]."""
    std: tuple[float, ...]
    """The standard deviation of each channel of the training images."""
    train_images: int
    test_images: int

    def as_set(self, name: str) -> ImageSet:
        """Return these images as an ``ImageSet`` with the given name."""
        return ImageSet(
            name=name,
            title=name,
            format="own",
            folder=self.data,
            train={"images": self.data_sha256},
            test={},
            pixels=Pixels(size=self.size, mean=self.mean, std=self.std),
            classes=len(self.classes),
            train_images=self.train_images,
            test_images=self.test_images,
        )


_TRAIN_IMAGES, _TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
_TEST_IMAGES, _TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
_MNIST = ImageSet(
    name="mnist",
    title="MNIST",
    format="idx",
    folder="mnist",
    train={
        _TRAIN_IMAGES: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        _TRAIN_LABELS: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    },
    test={
        _TEST_IMAGES: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        _TEST_LABELS: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    pixels=Pixels(size=28, mean=(0.1307,), std=(0.3081,)),
    classes=10,
    train_images=60_000,
    test_images=10_000,
    origin="https://ossci-datasets.s3.amazonaws.com/mnist/",
)
_FASHION_MNIST = replace(
    _MNIST,
    name="fashion-mnist",
    title="FashionMNIST",
    folder="fashion_mnist",
    train={
        _TRAIN_IMAGES: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        _TRAIN_LABELS: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    },
    test={
        _TEST_IMAGES: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        _TEST_LABELS: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    origin="https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
)
_CIFAR10 = ImageSet(
    name="cifar10",
    title="CIFAR-10",
    format="cifar",
    folder="cifar-10-batches-bin",
    train={
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    },
    test={"test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"},
    pixels=Pixels(
        size=32,
        mean=(0.49139968, 0.48215841, 0.44653091),
        std=(0.24703223, 0.24348513, 0.26158784),
    ),
    classes=10,
    train_images=50_000,
    test_images=10_000,
    origin="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
)
_CIFAR100 = replace(
    _CIFAR10,
    name="cifar100",
    title="CIFAR-100",
    folder="cifar-100-binary",
    train={"train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"},
    test={"test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"},
    classes=100,
    origin="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
)
_CIFAR10_15K = replace(
    _CIFAR10,
    name="cifar10-15k",
    title="15,000 images of CIFAR-10",
    folder="cifar10",
    train={
        "data_batch_1.bin": "1ab5a9f05fef79dfa2f7fb22b88bd79f6daab96d8bfb857cc808095752a507bb",
        "data_batch_2.bin": "4f7c6203a093abb81ae0ef9ab4d4adcb05a36403eb6fca591372ba0c78d0ac53",
    },
    test={"test_batch.bin": "5a467f7bf4951ffaa21710136089122801debf6096690c112868e957a632a7a3"},
    train_images=15_000,
    test_images=3_000,
    origin=None,
    part_of="cifar10",
)
_CIFAR100_10K = replace(
    _CIFAR100,
    name="cifar100-10k",
    title="10,000 images of CIFAR-100",
    folder="cifar100",
    train={"train.bin": "f7552574deec51a4d2e0561f786a24e4075d5a4e7884840a59ec65bc7f7b5618"},
    test={"test.bin": "42fb9785d7fe1e7defc74d5035f3fc1d45ecfe4d15d0e49c77425a697d6a1dbe"},
    train_images=10_000,
    test_images=2_000,
    origin=None,
    part_of="cifar100",
)
_TINY_IMAGENET = ImageSet(
    name="tiny-imagenet",
    title="Tiny ImageNet",
    format="folders",
    folder="tiny-imagenet-200",
    train={
        "tiny-imagenet-200": "be15b6fdfd9eca3705560de8b5d6398ef56c9b83d117d37588d19131e90d21e0",
    },
    # The labels of the official test set are not public, so validation images are tested.
    test={},
    pixels=Pixels(
        size=64,
        # ImageNet's values, our choice: the papers give none.
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    ),
    classes=200,
    train_images=100_000,
    test_images=10_000,
    origin="https://cs231n.stanford.edu/tiny-imagenet-200.zip",
)
_TINY_IMAGENET_20 = replace(
    _TINY_IMAGENET,
    name="tiny-imagenet-20",
    title="20 classes of Tiny ImageNet",
    folder="tiny_imagenet_20",
    train={
        "tiny-imagenet-20": "be15b6fdfd9eca3705560de8b5d6398ef56c9b83d117d37588d19131e90d21e0",
    },
    classes=20,
    train_images=10_000,
    test_images=1_000,
    origin=None,
    part_of="tiny-imagenet",
)
IMAGE_SETS = {
    "mnist": _MNIST,
    "fashion-mnist": _FASHION_MNIST,
    "cifar10": _CIFAR10,
    "cifar10-15k": _CIFAR10_15K,
    "cifar100": _CIFAR100,
    "cifar100-10k": _CIFAR100_10K,
    "tiny-imagenet": _TINY_IMAGENET,
    "tiny-imagenet-20": _TINY_IMAGENET_20,
}
