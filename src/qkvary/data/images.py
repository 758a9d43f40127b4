"""Reads image data sets: from ``QKVARY_DATA``, the cache or the web, each file by its checksum."""

import functools
import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from qkvary.data.downloads import DownloadError, keep_in_cache
from qkvary.data.files import decompress, download, find_file
from qkvary.data.image_files import Images, LoadedImages, freeze, read_cifar, read_idx
from qkvary.data.image_sets import IMAGE_SETS, Archive, ImageSet
from qkvary.data.tiny_imagenet import find_tiny_imagenet, read_tiny_imagenet
from qkvary.storage.environment import cache_directory, data_root
from qkvary.storage.errors import DamagedError, ResourceError, UsageError
from qkvary.storage.untrusted_files import read_file
from qkvary.text.names import listed, suggest

LARGEST_FILE = 2**28
"""Maximum bytes of a file, compressed and uncompressed."""
DOWNLOAD_SECONDS = 1_800.0
_SUFFIXES = ("", ".gz", ".xz")


@functools.lru_cache(maxsize=1)
def load_images(name: str) -> LoadedImages:
    """Return the images of a data set; the last one stays in memory.

    Raises:
        UsageError: if there is no such set, or it is not on this machine and cannot be downloaded.
        DamagedError: if a file is truncated, of another layout, or not the published one.
        DownloadError: if a download fails.
    """
    if name not in IMAGE_SETS:
        raise UsageError(f"expected an image data set, got {name!r}; {suggest(name, IMAGE_SETS)}")
    images = IMAGE_SETS[name]
    if images.format == "folders":
        return _load_folders(images)
    paths = {file: _find(images, file) for file in images.files}
    missing = [file for file, path in paths.items() if path is None]
    contents = {file: (file, data) for file, data in _download(images, missing).items()}
    for file, path in paths.items():
        if path is not None:
            data = decompress(read_file(path, limit=LARGEST_FILE), str(path), limit=LARGEST_FILE)
            contents[file] = str(path), data
    return LoadedImages(
        train=_read_split(images, images.train, contents),
        test=_read_split(images, images.test, contents),
    )


def find_images(name: str) -> LoadedImages | None:
    """Return the images of a data set if all of its files are on this machine, else None.

    Raises:
        UsageError: if there is no such set.
        DamagedError: as :func:`load_images`.
    """
    images = IMAGE_SETS.get(name)
    if images is not None and any(_find(images, file) is None for file in images.files):
        return None
    return load_images(name)


def check_images(name: str) -> None:
    """Check that a data set is here and valid, or download it.

    Images in separate files are decoded but not kept, since they take more memory.

    Raises:
        UsageError: as :func:`load_images`, and so the other errors.
    """
    images = IMAGE_SETS.get(name)
    if images is not None and images.format == "folders":
        _load_folders(images)
    else:
        load_images(name)


def _place_of_folders(images: ImageSet) -> Path:
    """Return the folder or archive of a data set; a downloaded archive is kept in the cache."""
    (stem,) = images.train
    bases = [base / images.folder for base in (data_root(), cache_directory()) if base is not None]
    for base in bases:
        place = find_tiny_imagenet(base, stem)
        if place is not None:
            return place
    put = f"put {stem}.zip, .tar, .tar.gz or .tar.xz, or its folder, into QKVARY_DATA"
    origin, cache = _origin(images, put), cache_directory()
    if not isinstance(origin, Archive) or cache is None:
        raise UsageError(f"{images.name} is not on this machine: {put}")
    path = cache / images.folder / f"{stem}.zip"
    keep_in_cache(path, _fetch(images, origin.url, put, origin.sha256))
    if not path.is_file():
        raise ResourceError(f"cannot write {path}: {put}")
    return path


def _load_folders(images: ImageSet) -> LoadedImages:
    place, (digest,) = _place_of_folders(images), images.train.values()
    loaded = read_tiny_imagenet(
        place, classes=images.classes, size=images.pixels.size, digest=digest
    )
    found, expected = (
        tuple(len(part.labels) for part in loaded),
        (images.train_images, images.test_images),
    )
    if found != expected:
        raise DamagedError(f"expected {expected} images in {place}, got {found}")
    return loaded


def _find(images: ImageSet, file: str) -> Path | None:
    return find_file(images.folder, file, _SUFFIXES)


def _read_split(
    images: ImageSet, files: Mapping[str, str], found: Mapping[str, tuple[str, bytes]]
) -> Images:
    """Decode the files of a split. A wrong layout is reported before a wrong checksum."""
    contents = [found[file] for file in files]
    if images.format == "idx":
        (pixels_at, pixels), (labels_at, labels) = contents
        parts = [(read_idx(pixels, pixels_at)[:, None], read_idx(labels, labels_at))]
    else:
        parts = [read_cifar(data, where, classes=images.classes) for where, data in contents]
    side = (images.pixels.channels, images.pixels.size, images.pixels.size)
    where = listed([place for place, _ in contents])
    for pixels, labels in parts:
        if pixels.shape[1:] != side or labels.shape != pixels.shape[:1]:
            raise DamagedError(
                f"expected images of {side} with one label each in {where}, got "
                f"{pixels.shape} and {labels.shape}"
            )
        if labels.size and int(labels.max()) >= images.classes:
            raise DamagedError(
                f"expected labels below {images.classes} in {where}, got {int(labels.max())}"
            )
    for (place, data), sha256 in zip(contents, files.values(), strict=True):
        _check_sum(images, data, sha256, place)
    return freeze(
        np.concatenate([pixels for pixels, _ in parts]),
        np.concatenate([labels for _, labels in parts]).astype(np.int64),
    )


def _check_sum(images: ImageSet, data: bytes, sha256: str, where: str) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found == sha256:
        return
    owners = (other.name for other in IMAGE_SETS.values() if found in other.files.values())
    owner = next(owners, None)
    said = "" if owner is None else f", which is that of a file of {owner}"
    raise DamagedError(
        f"expected a file of {images.name} with sha256 {sha256[:12]} in {where}, got "
        f"{found[:12]}{said}: remove or replace it"
    )


def _download(images: ImageSet, missing: list[str]) -> dict[str, bytes]:
    """Download the missing files, and keep valid ones in the cache."""
    if not missing:
        return {}
    put = f"put {listed(missing)} (plain, .gz or .xz) into {images.folder} below QKVARY_DATA"
    origin = _origin(images, put)
    if isinstance(origin, Archive):
        archive = _fetch(images, origin.url, put, origin.sha256)
        found = plain = _unpack(images.folder, archive, missing)
    else:
        found = {f"{file}.gz": _fetch(images, f"{origin}{file}.gz", put) for file in missing}
        plain = {
            file: decompress(found[f"{file}.gz"], f"{origin}{file}.gz", limit=LARGEST_FILE)
            for file in missing
        }
    for file, data in plain.items():
        if hashlib.sha256(data).hexdigest() != images.files[file]:
            raise DownloadError(f"the sha256 of the downloaded {file} of {images.name} differs")
    if cache := cache_directory():
        for file, data in found.items():
            keep_in_cache(cache / images.folder / file, data)
    return plain


def _origin(images: ImageSet, put: str) -> str | Archive:
    if images.origin is None:
        raise UsageError(f"{images.name}, a subset, is not on this machine: {put}")
    return images.origin


def _fetch(images: ImageSet, url: str, put: str, sha256: str | None = None) -> bytes:
    return download(
        url, put, name=images.name, limit=LARGEST_FILE, sha256=sha256, timeout=DOWNLOAD_SECONDS
    )


def _unpack(folder: str, archive: bytes, files: list[str]) -> dict[str, bytes]:
    """Return files of a published archive, in memory: nothing is extracted to the disk."""
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as members:
        for file in files:
            member = members.extractfile(f"{folder}/{file}")
            found[file] = b"" if member is None else member.read(LARGEST_FILE)
    return found
