"""Tiny ImageNet from a folder and from archives, and what is refused in either."""

import hashlib
import io
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qkvary.data import tiny_imagenet
from qkvary.data.image_sets import ARCHIVES, IMAGE_SETS
from qkvary.data.images import load_images
from qkvary.data.tiny_imagenet import digest_classes
from qkvary.storage.errors import DamagedError, UsageError
from tests.data.small_images import pack_tar

SIZE, STEM = 8, "small"
CLASSES = ("n03", "n01", "n02")
Files = dict[str, bytes]


def jpeg(number: int, *, size: tuple[int, int] = (SIZE, SIZE), mode: str = "RGB") -> bytes:
    made = io.BytesIO()
    Image.new(mode, size, 20 * number if mode == "L" else (20 * number, 100, 50)).save(made, "JPEG")
    return made.getvalue()


def small_files() -> Files:
    """Three classes with two training images and one validation image each, one of them grey."""
    files: Files = {"wnids.txt": "\n".join(CLASSES).encode(), "words.txt": b"n01\tcat"}
    lines: list[str] = []
    for label, wnid in enumerate(CLASSES):
        for number in range(2):
            mode = "L" if label == number == 1 else "RGB"
            image = jpeg(2 * label + number, mode=mode)
            files[f"train/{wnid}/images/{wnid}_{number}.JPEG"] = image
        files[f"val/images/val_{label}.JPEG"] = jpeg(7 + label)
        lines.append(f"val_{label}.JPEG\t{wnid}\t0\t0\t9\t9")
    return {**files, "val/val_annotations.txt": "\n".join(lines).encode()}


def write_folder(place: Path, files: Files) -> Path:
    for name, data in files.items():
        path = place / STEM / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return place / STEM


def write_tar(place: Path, files: Files, *, link: str = "", end: str = ".tar.xz") -> Path:
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{STEM}{end}"
    path.write_bytes(pack_tar(files, STEM, end=end, link=link))
    return path


def write_zip(place: Path, files: Files, *, packing: int = zipfile.ZIP_STORED) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{STEM}.zip"
    with zipfile.ZipFile(path, "w", packing) as members:
        for name, data in files.items():
            members.writestr(f"{STEM}/{name}", data)
    return path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the data set ``small`` is looked for."""
    monkeypatch.setenv("QKVARY_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    load_images.cache_clear()
    files = small_files()
    validation = {f"val/images/val_{n}.JPEG": wnid for n, wnid in enumerate(CLASSES)}
    digest = digest_classes(files, CLASSES, validation)
    about = IMAGE_SETS["tiny-imagenet-20"]
    small = replace(about, folder="here", classes=3, train_images=6, test_images=3)
    small = replace(small, train={STEM: digest}, pixels=replace(about.pixels, size=SIZE))
    monkeypatch.setitem(IMAGE_SETS, "small", small)
    return tmp_path / "data" / "here"


@pytest.mark.parametrize(
    "write",
    [write_folder, write_tar, write_zip, lambda at, files: write_tar(at, files, end=".tar.gz")],
)
def test_folder_and_archives_have_the_same_images(
    place: Path, write: Callable[[Path, Files], Path]
) -> None:
    write(place, small_files())
    loaded = load_images("small")
    assert loaded.train.pixels.shape == (6, 3, SIZE, SIZE)
    # By the order of wnids.txt, and sorted by path.
    assert loaded.train.labels.tolist() == [1, 1, 2, 2, 0, 0]
    assert loaded.test.labels.tolist() == [0, 1, 2]
    first = loaded.train.pixels[0].reshape(3, -1).mean(axis=1)
    np.testing.assert_allclose(first, [40, 100, 50], atol=3)
    grey = loaded.train.pixels[1]
    assert (grey[0] == grey[1]).all()
    np.testing.assert_allclose(grey[0], 60, atol=3)


def changed(name: str, data: bytes) -> Files:
    return {**small_files(), name: data}


FIRST = "train/n01/images/n01_0.JPEG"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (changed(FIRST, jpeg(3)), "first 20 classes of Tiny ImageNet with sha256 .* remove or"),
        (changed("wnids.txt", b"n01 n02"), "expected 3 classes in wnids.txt of .*, got 2"),
        (changed("wnids.txt", b"n01 n02 n09"), "sha256"),
        (changed("val/val_annotations.txt", b"val_0.JPEG"), "sha256"),
        ({"a.txt": b""}, "expected wnids.txt in .*, got none"),
    ],
)
def test_another_data_set_is_refused(place: Path, files: Files, message: str) -> None:
    write_zip(place, files)
    with pytest.raises(DamagedError, match=message):
        load_images("small")


def huge_jpeg() -> bytes:
    """The start of a JPEG whose header claims 65,000 x 65,000 pixels."""
    data = bytearray(jpeg(1))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = b"\xfd\xe8\xfd\xe8"
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (jpeg(1, size=(9, 8)), "a square picture of 8 pixels a side in .*n01_0.JPEG, got 9 x 8"),
        (jpeg(1)[:-60], "expected a complete JPEG in .*n01_0.JPEG"),
        (b"GIF89a", "expected a complete JPEG in .*n01_0.JPEG"),
        (b"", "expected a complete JPEG in .*n01_0.JPEG"),
        # An image bomb is not decoded.
        (huge_jpeg(), r"n01_0\.JPEG"),
    ],
)
def test_an_image_that_is_none_is_refused(
    place: Path, data: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_imagenet, "digest_classes", lambda *_: IMAGE_SETS["small"].train[STEM])
    write_folder(place, changed(FIRST, data))
    with pytest.raises(DamagedError, match=message):
        load_images("small")


def test_nothing_is_read_outside_of_an_archive(place: Path) -> None:
    """Nothing is unpacked either."""
    files = small_files()
    for write in (write_tar, write_zip):
        path = write(place, {"../../outside.txt": b"x", **files})
        load_images.cache_clear()
        assert load_images("small").test.labels.tolist() == [0, 1, 2]
        path.unlink()
    del files["wnids.txt"]
    write_tar(place, files, link="wnids.txt")
    load_images.cache_clear()
    with pytest.raises(DamagedError, match=r"classes in wnids.txt of .*small.tar.xz, got 0"):
        load_images("small")
    left = {path.name for path in place.parent.parent.rglob("*")}
    assert left == {"data", "here", "small.tar.xz"}


def test_a_zip_that_lies_about_a_size_is_not_unpacked(place: Path) -> None:
    path = write_zip(place, {FIRST: bytes(2**26)}, packing=zipfile.ZIP_DEFLATED)
    data = path.read_bytes()
    honest = (2**26).to_bytes(4, "little")
    assert data.count(honest) == 2
    path.write_bytes(data.replace(honest, (1_000).to_bytes(4, "little")))
    tracemalloc.start()
    try:
        with pytest.raises(DamagedError, match=r"archive in|files of at most"):
            load_images("small")
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


def test_archives_that_are_too_large_or_broken_are_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tar(place, small_files())
    whole = path.read_bytes()
    for data in (whole[:-100], b"no archive"):
        path.write_bytes(data)
        with pytest.raises(DamagedError, match=r"expected .* in .*small.tar.xz"):
            load_images("small")
    path.write_bytes(whole)
    monkeypatch.setattr(tiny_imagenet, "LARGEST_TOTAL", 2_000)
    with pytest.raises(DamagedError, match=r"small.tar.xz to hold .* 2,000 bytes in all, got more"):
        load_images("small")


def test_a_set_that_is_not_here_is_said_to_be(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UsageError, match=r"a subset, .* put small.zip .or .tar, .* into QKVARY_DATA"
    ):
        load_images("small")
    packed = write_zip(place.parent.parent / "web", small_files()).read_bytes()
    sha256 = hashlib.sha256(packed).hexdigest()
    small = replace(IMAGE_SETS["small"], origin="https://x/small.zip")
    monkeypatch.setitem(IMAGE_SETS, "small", small)
    monkeypatch.setitem(ARCHIVES, "https://x/small.zip", sha256)
    monkeypatch.setattr("qkvary.data.files.fetch", lambda *_, **__: packed)
    assert load_images("small").test.labels.tolist() == [0, 1, 2]
    assert (place.parent.parent / "cache" / "here" / "small.zip").read_bytes() == packed
