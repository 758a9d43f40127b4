"""Image data sets: their files in every compression, and every way that a file can be wrong."""

import gzip
import hashlib
import lzma
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qkvary.data import images
from qkvary.data.downloads import DownloadError
from qkvary.data.image_files import read_idx
from qkvary.data.image_sets import ARCHIVES, IMAGE_SETS
from qkvary.data.images import load_images
from qkvary.storage.errors import DamagedError, UsageError
from tests.data.small_images import (
    describe_small,
    draw,
    pack_idx,
    pack_tar,
    small_contents,
    write_files,
)

GREY, COLOUR = "mnist", "cifar10-15k"
IMAGES = "train-images-idx3-ubyte"
LABELS = "train-labels-idx1-ubyte"
BATCH = "data_batch_1.bin"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with a small set like MNIST and one like CIFAR-10, and an empty cache."""
    monkeypatch.setenv("QKVARY_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    load_images.cache_clear()
    for like in (GREY, COLOUR):
        contents = small_contents(like, train=11, test=5, classes=10)
        about = describe_small(like, contents, train=11, test=5)
        monkeypatch.setitem(IMAGE_SETS, like, about)
        write_files(tmp_path / "data" / about.folder, contents)
    return tmp_path / "data"


@pytest.mark.usefixtures("root")
def test_grey_images_are_those_of_the_files() -> None:
    loaded = load_images(GREY)
    assert loaded.train.pixels.dtype == np.uint8
    np.testing.assert_array_equal(loaded.train.pixels, draw(11, 6, 6, seed=0)[:, None])
    np.testing.assert_array_equal(loaded.train.labels, draw(11, seed=10, below=10))
    np.testing.assert_array_equal(loaded.test.pixels, draw(5, 6, 6, seed=1)[:, None])
    assert load_images(GREY) is loaded
    with pytest.raises(ValueError, match="read-only"):
        loaded.train.pixels[0] = 0


@pytest.mark.usefixtures("root")
def test_colour_images_are_those_of_the_files_in_their_order() -> None:
    loaded = load_images(COLOUR)
    np.testing.assert_array_equal(loaded.train.pixels, draw(11, 3, 32, 32, seed=0))
    np.testing.assert_array_equal(loaded.train.labels, draw(11, seed=10, below=10))
    np.testing.assert_array_equal(loaded.test.labels, draw(5, seed=11, below=10))


def damaged_gzip(data: bytes) -> bytes:
    packed = bytearray(gzip.compress(data))
    packed[12] ^= 255
    return bytes(packed)


def test_another_file_is_refused(root: Path) -> None:
    path = root / "mnist" / IMAGES
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedError, match=f"expected a file of mnist with sha256 .* in {path}"):
        load_images(GREY)
    assert not (root.parent / "cache").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected an IDX file of bytes in here, got one that begins"),
        (b"\x89PNG\r\n", "expected an IDX file of bytes in here, got one that begins 89 50"),
        (b"\0\0\x0d\1" + bytes(4), "expected an IDX file of bytes in here, got one that begins 00"),
        (pack_idx(draw(11, 6, seed=0))[:-1], "78 bytes in here according to its header, got 77"),
        (struct.pack(">4B3I", 0, 0, 8, 3, *[2**31] * 3), "9,903,520,314,283,042,199,192,993,808"),
    ],
)
def test_an_array_that_is_none_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(DamagedError, match=message):
        read_idx(data, "here")


@pytest.mark.parametrize(
    ("end", "change", "message"),
    [
        (".gz", lambda data: gzip.compress(data)[:-9], "data_batch_1.bin.gz cannot be unpacked"),
        (".xz", lambda data: lzma.compress(data)[:-9], "data_batch_1.bin.xz cannot be unpacked"),
        (".gz", damaged_gzip, "data_batch_1.bin.gz cannot be unpacked"),
        (".gz", lambda _: gzip.compress(bytes(50_001)), "expected at most 50,000 bytes in .*,"),
    ],
)
def test_a_packed_file_that_is_wrong_is_refused(
    root: Path,
    end: str,
    change: Callable[[bytes], bytes],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(images, "LARGEST_FILE", 50_000)
    path = root / "cifar10" / BATCH
    data = change(path.read_bytes())
    path.unlink()
    Path(f"{path}{end}").write_bytes(data)
    with pytest.raises(DamagedError, match=message):
        load_images(COLOUR)


def test_a_set_that_is_not_here_is_said_to_be(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "cifar10" / BATCH).unlink()
    with pytest.raises(UsageError, match=r"a subset, .* put data_batch_1.bin .* into cifar10"):
        load_images(COLOUR)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (root / "mnist" / LABELS).unlink()
    with pytest.raises(UsageError, match="mnist is not on this machine, and downloads are off"):
        load_images(GREY)
    with pytest.raises(UsageError, match="expected an image data set, got 'mnits'; did you mean"):
        load_images("mnits")


def test_a_missing_file_is_downloaded_and_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, asked = root / "mnist" / LABELS, list[str]()
    data = path.read_bytes()
    path.unlink()

    def fetch(url: str, **_: object) -> bytes:
        asked.append(url)
        return gzip.compress(data)

    monkeypatch.setattr("qkvary.data.files.fetch", fetch)
    first = load_images(GREY)
    load_images.cache_clear()
    np.testing.assert_array_equal(load_images(GREY).train.labels, first.train.labels)
    assert asked == [f"{IMAGE_SETS[GREY].origin}{LABELS}.gz"]
    assert (root.parent / "cache" / "mnist" / f"{LABELS}.gz").is_file()


def test_an_archive_is_unpacked_in_memory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = small_contents(COLOUR, train=11, test=5, classes=10)
    packed = pack_tar(contents, "cifar10", end=".tar.gz")
    sha256 = hashlib.sha256(packed).hexdigest()
    about = replace(IMAGE_SETS[COLOUR], origin="https://x/y.tar.gz")
    monkeypatch.setitem(IMAGE_SETS, COLOUR, about)
    monkeypatch.setitem(ARCHIVES, "https://x/y.tar.gz", sha256)
    monkeypatch.setattr("qkvary.data.files.fetch", lambda *_, **__: packed)
    for name in contents:
        (root / "cifar10" / name).unlink()
    np.testing.assert_array_equal(load_images(COLOUR).train.labels, draw(11, seed=10, below=10))
    kept = root.parent / "cache" / "cifar10"
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == contents


@pytest.mark.parametrize("is_archive", [False, True])
def test_a_download_that_is_another_file_is_not_kept(
    root: Path, monkeypatch: pytest.MonkeyPatch, is_archive: bool
) -> None:
    like = COLOUR if is_archive else GREY
    about = replace(IMAGE_SETS[like], origin="https://x/")
    monkeypatch.setitem(IMAGE_SETS, like, about)
    if is_archive:
        monkeypatch.setitem(ARCHIVES, "https://x/", "0" * 64)
    (root / about.folder / next(iter(about.train))).unlink()
    monkeypatch.setattr("qkvary.data.files.fetch", lambda *_, **__: gzip.compress(bytes(3_073)))
    with pytest.raises(DownloadError, match=r"its sha256 is not|downloaded train-images.*"):
        load_images(like)
    assert not (root.parent / "cache").exists()
