"""Images: splits, normalisation, order, augmentation, and scores of solvers that are known."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from qkvary.data.augmentation import Crops, draw_crops
from qkvary.data.image_sets import IMAGE_SETS
from qkvary.tasks.image_config import ImageTaskConfig
from qkvary.tasks.images import ImageTask, crop_and_flip, split_rows
from tests.data.small_images import draw
from tests.tasks.solvers import Solver
from tests.tasks.tiny_networks import tiny_images


def make(**fields: object) -> ImageTask:
    given = {"name": tiny_images(), "validation_images": 17, "evaluation_batch_size": 5}
    return ImageTask(ImageTaskConfig(**{**given, **fields}))  # type: ignore[arg-type]


def test_images_are_normalised_by_channel() -> None:
    task = make()
    batch, about = task.batch(0, 36, 0), IMAGE_SETS["images"]
    pixels = draw(53, 6, 6, seed=0)[task.train_rows][:, None]
    expected = (pixels / 255 - about.pixels.mean[0]) / about.pixels.std[0]
    found = batch.inputs.numpy()
    order = [np.abs(expected - image).sum(axis=(1, 2, 3)).argmin() for image in found]
    assert sorted(order) == list(range(36))
    np.testing.assert_allclose(found, expected[order], rtol=1e-5, atol=1e-6)
    labels = draw(53, seed=10, below=11)[task.train_rows]
    assert batch.targets.tolist() == labels[order].tolist()


def test_an_epoch_has_each_image_once_and_the_next_another_order() -> None:
    task = make()
    epochs = [
        [task.batch(step, 12, 3).inputs for step in steps] for steps in ((0, 1, 2), (3, 4, 5))
    ]
    rows = [{image.numpy().tobytes() for part in epoch for image in part} for epoch in epochs]
    assert len(rows[0]) == 36
    assert rows[0] == rows[1]
    assert not torch.equal(epochs[0][0], epochs[1][0])
    with pytest.raises(ValueError, match="expected batches of at most 36 images, got 37"):
        task.batch(0, 37, 0)


def test_clean_splits_are_disjoint_and_whole() -> None:
    task = make()
    assert task.validation_rows is not None
    train, validation = set(task.train_rows.tolist()), set(task.validation_rows.tolist())
    assert not train & validation
    assert train | validation == set(range(53))
    assert len(validation) == 17


def test_published_splits_of_colour_images_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(IMAGE_SETS, "images", replace(IMAGE_SETS[tiny_images()], format="cifar"))
    config = ImageTaskConfig(name="images", splits="as-published", validation_images=17)  # type: ignore[arg-type]
    train, validation = split_rows(config)
    assert validation is not None
    assert (len(train), len(validation)) == (36, 17)
    assert set(train.tolist()) & set(validation.tolist())


@pytest.mark.parametrize("split", ["validation", "test"])
def test_one_class_scores_its_share_and_an_oracle_everything(split: str) -> None:
    task = make()
    pixels, labels = draw(19, 6, 6, seed=1), draw(19, seed=11, below=11)
    if split == "validation":
        rows = task.validation_rows
        pixels, labels = draw(53, 6, 6, seed=0)[rows], draw(53, seed=10, below=11)[rows]
    share = float((labels == 3).mean())
    found = task.evaluate(Solver(lambda _: 3, 11), split)  # type: ignore[arg-type]
    assert found["accuracy"] == pytest.approx(share, abs=1e-12)
    assert found["loss"] == pytest.approx(100 * (1 - share), rel=1e-6)
    images = task._read(torch.from_numpy(pixels[:, None].copy()))
    known = dict(zip(map(str, images.tolist()), labels.tolist(), strict=True))
    oracle = Solver(lambda image: known[str(image)], 11)
    assert task.evaluate(oracle, split)["accuracy"] == 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [7, 12, 17])
def test_crops_are_resized_like_a_crop_alone(size: int) -> None:
    images = torch.rand(5, 3, 12, 12, generator=torch.Generator().manual_seed(7))
    crops = Crops(
        *(np.array(part) for part in ([0, 1, 2, 0, 3], [0, 2, 0, 1, 1], [12, 11, 10, 12, 9])),
        np.array([12, 10, 12, 11, 11]),
        np.array([False, True, False, True, True]),
    )
    found = crop_and_flip(images, crops, size=size)
    for number, image in enumerate(images):
        top, left, height, width, flipped = (part[number] for part in crops)
        part = image[None, :, top : top + height, left : left + width]
        expected = F.interpolate(part, (size, size), mode="bilinear", align_corners=False)[0]
        expected = expected.flip(-1) if flipped else expected
        torch.testing.assert_close(found[number], expected, rtol=1e-4, atol=1e-5)


def test_crops_of_a_seed_stay_what_they_are() -> None:
    crops = draw_crops(5, 32, seed=3, step=4)
    # Top, left, height, width and whether it is flipped.
    expected = [[0, 0, 1, 3, 3], [0, 2, 2, 2, 0], [31, 30, 30, 28, 29], [31, 30, 30, 30, 31]]
    assert [part.tolist() for part in crops] == [*expected, [True, False, False, True, False]]
    later = draw_crops(5, 32, seed=3, step=21)
    assert (later.left.tolist(), later.height.tolist()) == ([1, 4, 1, 1, 0], [31, 30, 29, 30, 30])


def test_crops_have_the_published_areas_and_ratios_and_lie_inside() -> None:
    crops = draw_crops(4_001, 32, seed=1, step=2)
    top, left, height, width, flipped = crops
    assert (top.min(), left.min()) == (0, 0)
    assert ((top + height <= 32) & (left + width <= 32)).all()
    area, ratio = height * width / 32**2, width / height
    # Sides are rounded to pixels.
    assert 0.76 < area.min() < 0.80
    assert 0.9 * 31 / 32 <= ratio.min() < 0.9 * 33 / 32
    assert 1.1 * 31 / 32 < ratio.max() <= 1.1 * 33 / 32
    assert area.mean() == pytest.approx(0.88, abs=0.02)
    assert math.isclose(flipped.mean(), 0.5, abs_tol=0.04)
    again, other = draw_crops(4_001, 32, seed=1, step=2), draw_crops(4_001, 32, seed=1, step=3)
    assert all(np.array_equal(one, two) for one, two in zip(crops, again, strict=True))
    assert not np.array_equal(crops.left, other.left)


@pytest.mark.parametrize("augment", [False, True])
def test_images_are_resized_when_they_are_batched(augment: bool) -> None:
    task = make(resize_to=9, augment=augment)
    assert task.batch(0, 5, 0).inputs.shape == (5, 1, 9, 9)
    if not augment:
        small = make().batch(0, 5, 0).inputs
        expected = F.interpolate(small, (9, 9), mode="bilinear", align_corners=False)
        torch.testing.assert_close(task.batch(0, 5, 0).inputs, expected)
    assert task.config.image_size == 9
    with pytest.raises(ValueError, match="expected resize_to of ImageTaskConfig in 1"):
        make(resize_to=0)
