"""Reads image data sets from ``QKVARY_DATA``, the cache or the web, and verifies each checksum."""

import functools
import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from qkvary.data.downloads import DownloadError, keep_in_cache
from qkvary.data.files import decompress, download, find_file, local_paths
from qkvary.data.image_files import Images, LoadedImages, freeze, read_cifar, read_idx
from qkvary.data.image_sets import IMAGE_SETS, ImageSet
from qkvary.data.tiny_imagenet import find_tiny_imagenet, read_tiny_imagenet
from qkvary.storage.environment import cache_directory
from qkvary.storage.errors import DamagedError, ResourceError, UsageError
from qkvary.storage.untrusted_files import read_file
from qkvary.text.names import listed, suggest

LARGEST_FILE = 2**28
"""Maximum size of a file in bytes, both compressed and uncompressed."""
DOWNLOAD_SECONDS = 1_800.0


@functools.lru_cache(maxsize=1)
def load_images(name: str) -> LoadedImages:
    """Return the images of a data set, downloaded if necessary; the last set stays in memory."""
    if name not in IMAGE_SETS:
        raise UsageError(f"expected an image data set, got {name!r}; {suggest(name, IMAGE_SETS)}")
    images = IMAGE_SETS[name]
    if images.format == "folders":
        return _load_folders(images)
    paths = {file: _find(images, file) for file in images.files}
    contents = _download(images, [file for file, path in paths.items() if path is None])
    for file, path in paths.items():
        if path is not None:
            data = decompress(read_file(path, limit=LARGEST_FILE), str(path), limit=LARGEST_FILE)
            contents[file] = _check_sum(images, data, images.files[file], str(path))
    train, test = (
        _decode(images, {file: contents[file] for file in files})
        for files in (images.train, images.test)
    )
    return LoadedImages(train, test)


def find_images(name: str) -> LoadedImages | None:
    """Return a data set's images if all of its files are on this machine, else None."""
    images = IMAGE_SETS.get(name)
    if images is not None and any(_find(images, file) is None for file in images.files):
        return None
    return load_images(name)


def _place_of_folders(images: ImageSet) -> Path:
    """Return the folder or archive of a data set; a downloaded archive is kept in the cache."""
    (stem,) = images.train
    for folder in local_paths(images.folder):
        place = find_tiny_imagenet(folder, stem)
        if place is not None:
            return place
    put = f"put {stem}.zip (or .tar, .tar.gz, .tar.xz, or the folder) into QKVARY_DATA"
    cache = cache_directory()
    if cache is None:
        raise UsageError(f"{images.name} is not on this machine: {put}")
    path = cache / images.folder / f"{stem}.zip"
    keep_in_cache(path, _fetch(images, "", put))
    if not path.is_file():
        raise ResourceError(f"cannot write {path}: {put}")
    return path


def _load_folders(images: ImageSet) -> LoadedImages:
    place, (digest,) = _place_of_folders(images), images.train.values()
    loaded = read_tiny_imagenet(
        place, classes=images.classes, size=images.pixels.size, digest=digest
    )
    found = len(loaded.train.labels), len(loaded.test.labels)
    expected = images.train_images, images.test_images
    if found != expected:
        raise DamagedError(f"expected {expected} images in {place}, got {found}")
    return loaded


def _find(images: ImageSet, file: str) -> Path | None:
    return find_file(images.folder, [f"{file}{end}" for end in ("", ".gz", ".xz")])


def _decode(images: ImageSet, contents: Mapping[str, bytes]) -> Images:
    """Decode the published files of a split."""
    if images.format == "idx":
        pixels, labels = (read_idx(data, file) for file, data in contents.items())
        return freeze(pixels[:, None], labels.astype(np.int64))
    parts = [read_cifar(data, classes=images.classes) for data in contents.values()]
    pixels, labels = (np.concatenate(some) for some in zip(*parts, strict=True))
    return freeze(pixels, labels)


def _check_sum(images: ImageSet, data: bytes, sha256: str, where: str) -> bytes:
    found = hashlib.sha256(data).hexdigest()
    if found == sha256:
        return data
    raise DamagedError(
        f"expected a file of {images.name} with sha256 {sha256[:12]} in {where}, got "
        f"{found[:12]}: remove or replace the file"
    )


def _download(images: ImageSet, missing: list[str]) -> dict[str, bytes]:
    """Download the missing files, and keep valid ones in the cache."""
    if not missing:
        return {}
    put = f"put {listed(missing)} (plain, .gz or .xz) into {images.folder} below QKVARY_DATA"
    if images.archive_sha256 is not None:
        found = plain = _unpack(images.folder, _fetch(images, "", put), missing)
    else:
        found = {f"{file}.gz": _fetch(images, f"{file}.gz", put) for file in missing}
        plain = {
            file: decompress(found[f"{file}.gz"], f"{file}.gz", limit=LARGEST_FILE)
            for file in missing
        }
    for file, data in plain.items():
        if hashlib.sha256(data).hexdigest() != images.files[file]:
            raise DownloadError(f"the downloaded {file} of {images.name} has the wrong sha256")
    if cache := cache_directory():
        for file, data in found.items():
            keep_in_cache(cache / images.folder / file, data)
    return plain


def _fetch(images: ImageSet, file: str, put: str) -> bytes:
    """Download a file of a data set, or its archive."""
    if images.origin is None:
        raise UsageError(f"{images.name}, a subset, is not on this machine: {put}")
    return download(
        f"{images.origin}{file}",
        put,
        name=images.name,
        limit=LARGEST_FILE,
        sha256=images.archive_sha256,
        timeout=DOWNLOAD_SECONDS,
    )


def _unpack(folder: str, archive: bytes, files: list[str]) -> dict[str, bytes]:
    """Return files of a published archive, in memory: nothing is extracted to the disk."""
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as members:
        for file in files:
            member = members.extractfile(f"{folder}/{file}")
            found[file] = b"" if member is None else member.read(LARGEST_FILE)
    return found
