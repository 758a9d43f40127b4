"""Image data sets of a few random images, written in the layouts of the published ones."""

import hashlib
import io
import struct
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkvary.data.image_sets import IMAGE_SETS, ImageSet


def pack_idx(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def pack_cifar(pixels: NDArray[np.uint8], labels: NDArray[np.uint8]) -> bytes:
    records = (
        bytes([label]) + image.tobytes() for image, label in zip(pixels, labels, strict=True)
    )
    return b"".join(records)


def pack_tar(contents: dict[str, bytes], folder: str, *, end: str, link: str = "") -> bytes:
    """A packed archive of a folder, in which one name may be a link out of it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:xz" if end == ".tar.xz" else "w:gz") as members:
        for name, data in contents.items():
            about = tarfile.TarInfo(f"{folder}/{name}")
            about.size = len(data)
            members.addfile(about, io.BytesIO(data))
        if link:
            about = tarfile.TarInfo(f"{folder}/{link}")
            about.type, about.linkname = tarfile.SYMTYPE, "/etc/hostname"
            members.addfile(about)
    return made.getvalue()


def draw(count: int, *sizes: int, seed: int, below: int = 256) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, below, (count, *sizes), dtype=np.uint8)


def small_contents(like: str, *, train: int, test: int, classes: int) -> dict[str, bytes]:
    """The files of a data set like ``mnist`` (6 x 6 pixels) or ``cifar10-15k``, uncompressed."""
    counts = {"train": train, "test": test}
    if like == "mnist":
        names = {"train": "train", "test": "t10k"}
        files: dict[str, bytes] = {}
        for seed, (split, start) in enumerate(names.items()):
            files[f"{start}-images-idx3-ubyte"] = pack_idx(draw(counts[split], 6, 6, seed=seed))
            labels = draw(counts[split], seed=seed + 10, below=classes)
            files[f"{start}-labels-idx1-ubyte"] = pack_idx(labels)
        return files
    cut = train // 3
    pixels, labels = draw(train, 3, 32, 32, seed=0), draw(train, seed=10, below=classes)
    return {
        "data_batch_1.bin": pack_cifar(pixels[:cut], labels[:cut]),
        "data_batch_2.bin": pack_cifar(pixels[cut:], labels[cut:]),
        "test_batch.bin": pack_cifar(
            draw(test, 3, 32, 32, seed=1), draw(test, seed=11, below=classes)
        ),
    }


def describe_small(
    like: str, contents: dict[str, bytes], *, train: int, test: int, **changes: Any
) -> ImageSet:
    """The entry of a small data set: sizes and checksums of its files."""
    about = IMAGE_SETS[like]
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    changed: dict[str, Any] = {
        "train": {name: sums[name] for name in about.train},
        "test": {name: sums[name] for name in about.test},
        "train_images": train,
        "test_images": test,
        "pixels": replace(about.pixels, size=6) if like == "mnist" else about.pixels,
    }
    return replace(about, **(changed | changes))


def write_files(folder: Path, contents: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return folder
