"""Images of one's own: both layouts, and what is refused with one sentence."""

import gzip
import io
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from qkvary.data.own_images import describe_images, load_own_images, read_own_images
from qkvary.papers.key_value.vision import vision_network
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.tasks.catalog import load_task
from qkvary.tasks.image_config import ImageTaskConfig
from qkvary.training.config import OptimizerConfig, RunConfig, TrainingConfig
from tests.data.small_images import draw, small_contents

Pixels = NDArray[np.uint8]


@pytest.fixture(autouse=True)
def _read_again() -> None:
    read_own_images.cache_clear()


def write_idx(folder: Path) -> Path:
    folder.mkdir()
    for name, data in small_contents("mnist", train=31, test=7, classes=5).items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(data))
    return folder


def picture(pixels: Pixels) -> bytes:
    """A file of ``[size, size]`` or ``[size, size, 3]``."""
    found = io.BytesIO()
    Image.fromarray(pixels).save(found, "PNG")
    return found.getvalue()


def write_pictures(folder: Path, *parts: str, per_class: int = 11, channels: int = 3) -> Path:
    """Pictures of three classes, below each of the parts."""
    for number, part in enumerate(parts or (".",)):
        for label, name in enumerate(("cat", "dog", "eel")):
            (folder / part / name).mkdir(parents=True)
            shape = (6, 6, 3)[: 2 if channels == 1 else 3]
            drawn = draw(per_class, *shape, seed=100 * number + label)
            for index, pixels in enumerate(drawn):
                (folder / part / name / f"{index}.png").write_bytes(picture(pixels))
    (folder / "README.txt").write_text("about these")
    return folder


def test_the_layout_of_mnist_is_read(tmp_path: Path) -> None:
    folder = write_idx(tmp_path / "kmnist")
    own = describe_images(folder)
    assert (own.classes, own.size) == (tuple("01234"), 6)
    assert (own.train_images, own.test_images) == (31, 7)
    pixels = draw(31, 6, 6, seed=0)
    assert own.mean == (round(float((pixels / 255).mean()), 4),)
    assert own.std == (round(float((pixels / 255).std()), 4),)
    train, test, _ = load_own_images(own)
    assert np.array_equal(train.pixels[:, 0], pixels)
    assert test.labels.tolist() == draw(7, seed=11, below=5).tolist()


def test_pictures_are_read_from_a_folder_of_each_class(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "pets", "train", "test")
    train, test, classes = read_own_images(str(folder))
    assert classes == ("cat", "dog", "eel")
    assert train.pixels.shape == test.pixels.shape == (33, 3, 6, 6)
    # Sorted by name: 0, 1, 10, 2, ...
    order = sorted(range(11), key=str)
    expected = draw(11, 6, 6, 3, seed=102)[order].transpose(0, 3, 1, 2)
    assert np.array_equal(test.pixels[22:], expected)
    assert train.labels.tolist() == [0] * 11 + [1] * 11 + [2] * 11


def test_without_parts_a_fifth_is_for_the_test(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "pets", per_class=50, channels=1)
    train, test, _ = read_own_images(str(folder))
    assert train.pixels.shape[1:] == (1, 6, 6)
    assert len(train.labels) + len(test.labels) == 150
    assert 15 <= len(test.labels) <= 45
    # A copy is on the same side as its original.
    for path in sorted((folder / "cat").iterdir()):
        (folder / "dog" / f"copy-{path.name}").write_bytes(path.read_bytes())
    read_own_images.cache_clear()
    train, test, _ = read_own_images(str(folder))
    sides = [{image.tobytes() for image in part.pixels} for part in (train, test)]
    assert not sides[0] & sides[1]


def test_a_network_is_trained_on_images_of_ones_own(tmp_path: Path) -> None:
    """As the guide shows it; other images are another run, another folder is not."""

    def described(folder: Path) -> ImageTaskConfig:
        read_own_images.cache_clear()
        return ImageTaskConfig(name="pets", own=describe_images(folder), validation_images=7)

    def key_of(config: ImageTaskConfig) -> str:
        return RunConfig(task=config, network=network, training=training, seed=0).run_key

    config = described(write_pictures(tmp_path / "pets", "train", "test"))
    network = vision_network(config, patch_size=3, d_model=8, num_layers=1, num_heads=2)
    optimizer = OptimizerConfig(learning_rate=1e-3)
    training = TrainingConfig(steps=1, batch_size=2, optimizer=optimizer, evaluate_every=1)
    task = load_task(config)
    model = task.build(network, 0).eval()
    assert task.evaluate(model, "test").keys() == {"loss", "accuracy"}
    assert task.batch(0, 5, 0).inputs.shape == (5, 3, 6, 6)
    (sample, *_) = task.samples(model)  # type: ignore[attr-defined]
    assert sample.truth in ("cat", "dog", "eel")

    (tmp_path / "pets").rename(tmp_path / "moved")
    moved = described(tmp_path / "moved")
    assert key_of(moved) == key_of(config)
    (tmp_path / "moved/train/cat/0.png").write_bytes(picture(draw(6, 6, 3, seed=9)))
    assert key_of(described(tmp_path / "moved")) != key_of(config)
    with pytest.raises(
        UsageError, match=r"expected images with .* start a new run for different images"
    ):
        load_task(moved)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"no picture", "expected a complete PNG or JPEG in .*0.png"),
        (picture(draw(5, 6, 3, seed=1)), "a square picture of 1 to 1024 pixels .*, got 6 x 5"),
    ],
)
def test_bad_pictures_are_refused(tmp_path: Path, data: bytes, says: str) -> None:
    folder = write_pictures(tmp_path / "pets", "train", "test")
    (folder / "train/cat/0.png").write_bytes(data)
    with pytest.raises(DamagedError, match=says):
        describe_images(folder)


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "none"):
        with pytest.raises(UsageError, match="expected train-images-idx3-ubyte and its companions"):
            describe_images(folder)
    folder = write_pictures(tmp_path / "pets", "train", "test")
    (folder / "test/gnu").mkdir()
    (folder / "test/gnu/0.png").write_bytes(picture(draw(6, 6, 3, seed=1)))
    with pytest.raises(
        UsageError, match=r"classes that are in .*train, got the additional classes gnu"
    ):
        describe_images(folder)
    one = tmp_path / "one"
    (one / "cat").mkdir(parents=True)
    (one / "cat/0.png").write_bytes(picture(draw(6, 6, 3, seed=1)))
    with pytest.raises(UsageError, match=r"expected at least 2 classes in .*one, got cat"):
        describe_images(one)
    idx = write_idx(tmp_path / "idx")
    (idx / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UsageError, match="expected images and labels for test in"):
        describe_images(idx)
