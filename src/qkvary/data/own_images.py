"""Reads the user's own images: files in MNIST's layout, or a folder of pictures for each class.

FOLDER/train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-...   (plain, .gz or .xz)
FOLDER/train/CLASS/*.png, FOLDER/test/CLASS/*.png                   (or .jpg; needs Pillow)
FOLDER/CLASS/*.png                                                  (a fifth is for the test)
"""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qkvary.data.files import decompress
from qkvary.data.image_files import Images, LoadedImages, decode_picture, freeze, read_idx
from qkvary.data.image_sets import OwnImages
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.packages import require
from qkvary.storage.untrusted_files import StrPath, read_file, read_path
from qkvary.text.names import listed

LARGEST_FILE, LARGEST_PICTURE = 2**28, 2**22
"""Maximum bytes of an IDX file (both compressed and uncompressed), and of a picture."""
LARGEST_SIDE = 1_024
TEST_SHARE = 5
"""If there is no folder of test images, one of this many pictures is a test image."""
_ENDINGS = (".png", ".jpg", ".jpeg")
_IDX = {"train": ("train",), "test": ("t10k", "test")}


def describe_images(folder: StrPath) -> OwnImages:
    """Return the size and statistics of the images of a folder."""
    data = str(read_path(folder, "a folder of images").resolve())
    train, test, classes = read_own_images(data)
    pixels = train.pixels.astype(np.float64) / 255
    mean, std = pixels.mean(axis=(0, 2, 3)), pixels.std(axis=(0, 2, 3))
    return OwnImages(
        data=data,
        data_sha256=_fingerprint(train, test, classes),
        classes=classes,
        size=train.pixels.shape[-1],
        # A constant channel is not scaled.
        mean=tuple(round(float(one), 4) for one in mean),
        std=tuple(round(float(one), 4) or 1.0 for one in std),
        train_images=len(train.labels),
        test_images=len(test.labels),
    )


def load_own_images(expected: OwnImages) -> LoadedImages:
    """Return the user's images; raise a ``UsageError`` if they are not the ``expected`` ones."""
    found = read_own_images(expected.data)
    sha256 = _fingerprint(*found)
    if sha256 != expected.data_sha256:
        raise UsageError(
            f"expected images with sha256 {expected.data_sha256[:12]} in {expected.data}, got "
            f"{sha256[:12]}: start a new run for different images"
        )
    return found


@functools.lru_cache(maxsize=1)
def read_own_images(folder: str) -> LoadedImages:
    """Return the images of a folder in either layout; the last folder read stays in memory."""
    root = Path(folder)
    found = _read_idx(root) or _read_pictures(root)
    if found is None:
        raise UsageError(
            f"expected train-images-idx3-ubyte and its companions, or folders of .png files, one "
            f"for each class, in {folder}, got neither"
        )
    if len(found.classes) < 2:
        raise UsageError(f"expected at least 2 classes in {folder}, got {listed(found.classes)}")
    for split, part in (("training", found.train), ("test", found.test)):
        if not len(part.labels):
            raise UsageError(f"expected images for {split} in {folder}, got none")
    sides = {part.pixels.shape[1:] for part in (found.train, found.test)}
    if len(sides) > 1:
        raise DamagedError(f"expected images of one size in {folder}, got {sorted(sides)}")
    return LoadedImages(freeze(*found.train), freeze(*found.test), found.classes)


def _fingerprint(train: Images, test: Images, classes: Sequence[str]) -> str:
    digest = hashlib.sha256("\n".join(classes).encode())
    for part in (train, test):
        digest.update(str(part.pixels.shape).encode())
        digest.update(part.pixels.tobytes())
        digest.update(part.labels.tobytes())
    return digest.hexdigest()


# ---- the layout of MNIST


def _read_idx(root: Path) -> LoadedImages | None:
    """Read images and labels of both splits; None if the folder has no such files."""
    if not any(root.glob("*-ubyte*")):
        return None
    parts: list[Images] = []
    for split, starts in _IDX.items():
        arrays: list[NDArray[np.uint8]] = []
        for kind in ("images-idx3", "labels-idx1"):
            names = (f"*{start}-{kind}-ubyte*" for start in starts)
            path = next((one for name in names for one in sorted(root.glob(name))), None)
            if path is None:
                found = listed(sorted(one.name for one in root.glob("*-ubyte*")))
                raise UsageError(f"expected images and labels for {split} in {root}, got {found}")
            data = read_file(path, limit=LARGEST_FILE)
            arrays.append(read_idx(decompress(data, str(path), limit=LARGEST_FILE), str(path)))
        pixels, labels = arrays
        if pixels.ndim != 3 or pixels.shape[1] != pixels.shape[2]:
            raise DamagedError(f"expected square images for {split} in {root}, got {pixels.shape}")
        if labels.shape != pixels.shape[:1]:
            raise DamagedError(
                f"expected {len(pixels):,} labels for {split} in {root}, got {labels.shape}"
            )
        parts.append(Images(pixels[:, None], labels.astype(np.int64)))
    last = max((int(part.labels.max()) for part in parts if part.labels.size), default=0)
    train, test = parts
    return LoadedImages(train, test, tuple(map(str, range(last + 1))))


# ---- folders of pictures


def _read_pictures(root: Path) -> LoadedImages | None:
    """Read pictures by class, sorted by name; None if the folder has no pictures."""
    files = {split: _list_pictures(root / split) for split in ("train", "test")}
    is_split = all(files.values())
    if not is_split:
        files = {"train": _list_pictures(root), "test": {}}
    classes = tuple(sorted(files["train"]))
    if not classes:
        return None
    unknown = sorted(files["test"].keys() - files["train"].keys())
    if unknown:
        raise UsageError(
            f"expected only classes that are in {root / 'train'}, got the additional classes "
            f"{listed(unknown)}"
        )
    require("PIL")
    found: dict[str, list[tuple[NDArray[np.uint8], int]]] = {"train": [], "test": []}
    for part, by_class in files.items():
        for label, name in enumerate(classes):
            for path in by_class.get(name, ()):
                data = read_file(path, limit=LARGEST_PICTURE)
                split = "test" if not is_split and _is_for_test(data) else part
                picture = decode_picture(data, str(path), range(1, LARGEST_SIDE + 1))
                found[split].append((picture, label))
    shapes = [picture.shape for some in found.values() for picture, _ in some]
    sides = {shape[1:] for shape in shapes}
    if len(sides) > 1:
        raise DamagedError(f"expected pictures of one size in {root}, got {len(sides)} sizes")
    # If one picture has colours, all pictures get three channels.
    shape = max(shapes)
    train, test = (
        Images(
            np.array([np.broadcast_to(one, shape) for one, _ in some], np.uint8).reshape(
                -1, *shape
            ),
            np.array([label for _, label in some], dtype=np.int64),
        )
        for some in found.values()
    )
    return LoadedImages(train, test, classes)


def _list_pictures(folder: Path) -> Mapping[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*/*")):
        if path.suffix.lower() in _ENDINGS and path.is_file():
            found.setdefault(path.parent.name, []).append(path)
    return found


def _is_for_test(data: bytes) -> bool:
    """Return whether a picture is for the test; identical pictures are in the same split."""
    return int.from_bytes(hashlib.sha256(data).digest()[:4], "big") % TEST_SHARE == 0
