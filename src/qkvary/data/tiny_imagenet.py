"""Reads Tiny ImageNet in its official layout from a folder or an archive; needs Pillow.

An archive is read from its beginning to its end and never unpacked to the disk.
"""

import errno
import hashlib
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from qkvary.data.image_files import Images, LoadedImages, decode_picture, freeze
from qkvary.storage.errors import DamagedError
from qkvary.storage.packages import require
from qkvary.storage.untrusted_files import check_regular_file, read_file

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tar.xz")
LARGEST_MEMBER = 2**22
"""Maximum size of a file of the data set, in bytes. Images have about 2,000 bytes."""
LARGEST_TOTAL = 2**31
"""Maximum total size of the unpacked files of an archive, in bytes."""
DIGESTED_CLASSES = 20
"""Number of classes whose files are verified by their sha256: the first ones of ``wnids.txt``."""
_NOT_WHOLE = (
    *(tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError),
    # A password, an unknown compression, or invalid numbers or names.
    *(RuntimeError, ValueError, IndexError),
)
"""The exceptions that readers of damaged archives raise."""
_CLASSES, _ANNOTATIONS = "wnids.txt", "val/val_annotations.txt"


def find_tiny_imagenet(folder: Path, stem: str) -> Path | None:
    """Return ``folder``, or the folder or archive ``stem`` in it or next to it, or None."""
    roots = (folder, folder / stem, folder.parent / stem)
    archives = (base / f"{stem}{end}" for base in (folder, folder.parent) for end in ARCHIVES)
    folders = (root for root in roots if (root / _CLASSES).is_file())
    return next((path for path in (*folders, *archives) if path.exists()), None)


def read_tiny_imagenet(place: Path, *, classes: int, size: int, digest: str) -> LoadedImages:
    """Return the training and the validation images; the test images have no labels.

    A label is the index of its class in ``wnids.txt``. Grey images become three equal channels.
    """
    require("PIL")
    if place.is_dir():
        named = {path.relative_to(place).as_posix(): path for path in place.rglob("*")}
        files = {
            name: read_file(path, limit=LARGEST_MEMBER)
            for name, path in named.items()
            if _is_wanted(name)
        }
    else:
        files = dict(_read_archive(place))
    wnids = _read_text(files, _CLASSES, place).split()
    if len(wnids) != classes or len(set(wnids)) != classes:
        raise DamagedError(f"expected {classes} classes in wnids.txt of {place}, got {len(wnids)}")
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    train = sorted(name for name in files if name.startswith("train/"))
    validation = _read_annotations(files, place)
    found = digest_classes(files, wnids[:DIGESTED_CLASSES], validation)
    if found != digest:
        raise DamagedError(
            f"expected the first {DIGESTED_CLASSES} classes of Tiny ImageNet with sha256 "
            f"{digest[:12]} in {place}, got {found[:12]}: remove or replace these images"
        )
    by_name = {name: name.split("/")[1] for name in train}
    return LoadedImages(
        _decode_all(files, by_name, labels, size, place),
        _decode_all(files, validation, labels, size, place),
    )


def digest_classes(
    files: Mapping[str, bytes], classes: Sequence[str], validation: Mapping[str, str]
) -> str:
    """Return one sha256 of the names and contents of all images of some classes."""
    chosen = set(classes)
    names = [name for name in files if name.startswith("train/") and name.split("/")[1] in chosen]
    names += [name for name, wnid in validation.items() if wnid in chosen]
    lines = (f"{name} {hashlib.sha256(files[name]).hexdigest()}" for name in sorted(names))
    return hashlib.sha256("\n".join((*classes, *lines)).encode()).hexdigest()


def _is_wanted(name: str) -> bool:
    if name in {_CLASSES, _ANNOTATIONS}:
        return True
    parts = name.split("/")
    is_train = len(parts) == 4 and (parts[0], parts[2]) == ("train", "images")
    is_image = is_train or (len(parts) == 3 and parts[:2] == ["val", "images"])
    return is_image and name.endswith(".JPEG")


def _read_archive(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the wanted files of an archive, with paths below its top folder."""
    check_regular_file(path)
    total = 0
    try:
        for name, size, read in _members(path):
            total += size + tarfile.BLOCKSIZE
            inside = "/".join(PurePosixPath(name).parts[1:])
            data = read(LARGEST_MEMBER + 1) if _is_wanted(inside) else None
            if total > LARGEST_TOTAL or (data is not None and len(data) > LARGEST_MEMBER):
                raise DamagedError(
                    f"expected {path} to hold at most {LARGEST_MEMBER:,} bytes per file and "
                    f"{LARGEST_TOTAL:,} bytes in all, got more with {name}"
                )
            if data is not None:
                yield inside, data
    except (*_NOT_WHOLE, OSError) as error:
        # An impossible offset gives EINVAL; errors of gzip have no number.
        if isinstance(error, OSError) and error.errno not in {None, errno.EINVAL}:
            raise
        raise DamagedError(f"expected a complete archive in {path}: {error}") from None


def _members(path: Path) -> Iterator[tuple[str, int, Callable[[int], bytes]]]:
    """Yield the name and the size of each file of an archive, and a function that reads bytes."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as packed:
            for info in packed.infolist():
                with packed.open(info) as file:
                    yield info.filename, info.file_size, file.read
        return
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            # A link has no contents of its own.
            file = archive.extractfile(member) if member.isfile() else None
            yield member.name, member.size, (file or io.BytesIO()).read


def _read_annotations(files: Mapping[str, bytes], place: Path) -> dict[str, str]:
    """Map the path of each validation image to the class of the image."""
    rows = (line.split("\t") for line in _read_text(files, _ANNOTATIONS, place).splitlines())
    found = {f"val/images/{row[0]}": row[1] for row in rows if len(row) > 1}
    return {name: wnid for name, wnid in found.items() if name in files}


def _read_text(files: Mapping[str, bytes], name: str, place: Path) -> str:
    if name not in files:
        raise DamagedError(f"expected {name} in {place}, got none")
    return files[name].decode("utf-8", errors="replace")


def _decode_all(
    files: Mapping[str, bytes],
    named: Mapping[str, str],
    labels: Mapping[str, int],
    size: int,
    place: Path,
) -> Images:
    """Decode images into one array; ``named`` maps their paths to their classes."""
    unknown = {wnid for wnid in named.values() if wnid not in labels}
    if unknown or not named:
        raise DamagedError(
            f"expected only images whose classes are listed in wnids.txt in {place}, got "
            f"{len(named):,} images, with {len(unknown):,} classes that are not listed"
        )
    pixels = np.empty((len(named), 3, size, size), dtype=np.uint8)
    for index, name in enumerate(named):
        where = f"{place}: {name}"
        pixels[index] = decode_picture(files[name], where, range(size, size + 1), ("JPEG",))
    return freeze(pixels, np.array([labels[wnid] for wnid in named.values()]))
