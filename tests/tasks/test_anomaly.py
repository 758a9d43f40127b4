"""Sets of ten images: their composition, what their order gives away, and who looks at it."""

import dataclasses

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qkvary.arch.labels import parse_variant
from qkvary.data import image_features
from qkvary.data.image_features import ImageFeatures
from qkvary.data.image_files import Images, LoadedImages
from qkvary.papers.key_value.set_anomaly import set_network
from qkvary.tasks import anomaly
from qkvary.tasks.anomaly import AnomalyTask
from qkvary.tasks.config import AnomalyOrder, AnomalyTaskConfig

CLASSES, IMAGES, HELD_OUT, TESTED = 5, 100, 10, 11


@pytest.fixture(autouse=True)
def _numbered_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the features: an image says its class, its number and its split."""

    def describe(images: int, split: int) -> NDArray[np.float32]:
        grid = np.indices((CLASSES, images)).astype(np.float32)
        return np.stack((*grid, np.full_like(grid[0], split)), axis=-1)

    made = ImageFeatures(describe(IMAGES, 0), describe(TESTED, 1))
    monkeypatch.setattr(anomaly, "load_features", lambda *_: made)


def make_task(order: AnomalyOrder = "shuffled", set_size: int = 10) -> AnomalyTask:
    return AnomalyTask(AnomalyTaskConfig(features="noise", order=order, set_size=set_size))


class PointAtLast(nn.Linear):
    """Answers with the last image whatever the images are."""

    def forward(self, images: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return torch.arange(images.shape[1]).float()[:, None].expand(len(images), -1, 1)


class PointAtOddClass(nn.Linear):
    """Answers with the image whose class is rarest in its set."""

    def forward(self, images: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        classes = images[..., 0]
        return -(classes[:, :, None] == classes[:, None, :]).sum(-1, keepdim=True).float()


@pytest.mark.parametrize("order", ["shuffled", "last"])
def test_a_set_has_one_image_of_another_class(order: AnomalyOrder) -> None:
    task = make_task(order)
    batch = task.batch(3, 61, 7)
    assert batch.inputs.shape == (61, 10, 3)
    classes, numbers, splits = batch.inputs.unbind(-1)
    odd = classes.gather(1, batch.targets[:, None])
    usual = classes[classes != odd].reshape(61, 9)
    assert (usual == usual[:, :1]).all()
    distinct = {
        len(set(zip(*pair, strict=True)))
        for pair in zip(classes.tolist(), numbers.tolist(), strict=True)
    }
    assert distinct == {10}
    assert not splits.any()
    assert numbers.max() < IMAGES - HELD_OUT
    assert set(batch.targets.tolist()) == ({9} if order == "last" else set(range(10)))


def test_each_training_image_is_the_anomaly_once_an_epoch() -> None:
    task, per_epoch = make_task(), CLASSES * (IMAGES - HELD_OUT) // 15
    seen: list[tuple[float, ...]] = []
    for step in range(per_epoch, 2 * per_epoch):
        batch = task.batch(step, 15, 1)
        odd = batch.inputs[torch.arange(15), batch.targets]
        seen += [tuple(image) for image in odd.tolist()]
    assert len(seen) == len(set(seen)) == CLASSES * (IMAGES - HELD_OUT)


def test_splits_share_no_image() -> None:
    task = make_task()
    numbers = {
        name: set(split[..., 1:].flatten(0, 1).unbind(0)) for name, split in task.splits.items()
    }
    assert {name: len(some) for name, some in numbers.items()} == {
        "train": CLASSES * 90,
        "validation": CLASSES * 10,
        "test": CLASSES * TESTED,
    }
    assert task.splits["train"][..., 1].max() < task.splits["validation"][..., 1].min()
    assert task.splits["test"][..., 2].all()


@pytest.mark.parametrize("split", ["validation", "test"])
def test_an_oracle_scores_one(split: str) -> None:
    assert make_task().evaluate(PointAtOddClass(1, 1), split)["accuracy"] == 1.0  # type: ignore[arg-type]


def logits_of(label: str, images: Tensor) -> Tensor:
    task = AnomalyTaskConfig(features="noise")
    network = set_network(task, d_model=24, num_layers=2, num_heads=2)
    network = dataclasses.replace(network.with_variant(parse_variant(label)), vocabulary=3)
    model = anomaly.Encoder(network, seed=5).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    return model(images)[..., 0]


@pytest.mark.parametrize(
    "label",
    [
        *("QKV", "Q=K-V", "Q-K=V", "Q=V", "Q=K=V", "(Q=K-V)+", "(Q=K=V)+", "MQA", "Q-MQA"),
        *("I-K-V", "Q-I-V", "Q-K-I", "I-K=V", "Q[map]=K-V", "Q-K[r3]-V", "Q=K-V@soft", "QKV@sima"),
    ],
)
def test_answers_move_with_the_images_unless_positions_are_known(label: str) -> None:
    images = torch.randn(3, 10, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    order = torch.randperm(10, generator=torch.Generator().manual_seed(3))
    moved = logits_of(label, images[:, order])
    difference = (moved - logits_of(label, images)[:, order]).abs().max()
    assert (difference > 1e-3) == ("+" in label)
    assert difference < 1e-9 or "+" in label


@pytest.mark.parametrize("order", ["shuffled", "last"])
def test_samples_show_the_images_of_their_sets(
    order: AnomalyOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(order)
    monkeypatch.setattr(anomaly, "find_pictures", {"noise": None}.__getitem__)
    assert task.samples(PointAtOddClass(1, 1)) == ()
    grid = np.indices((CLASSES, IMAGES)).astype(np.uint8)
    pictures = {"train": np.stack(tuple(grid), axis=-1)[..., None, None]}
    monkeypatch.setattr(anomaly, "find_pictures", {"noise": pictures}.__getitem__)
    samples = task.samples(PointAtOddClass(1, 1))
    assert len(samples) == 2
    for sample in samples:
        assert sample.pictures is not None
        classes, numbers = sample.pictures[:, :2, 0, 0].T
        assert sample.answer == sample.truth
        odd = int(sample.truth) - 1
        assert order == "shuffled" or odd == 9
        assert (classes == classes[odd]).sum() == 1
        assert numbers.min() >= IMAGES - HELD_OUT
    others = task.samples(PointAtLast(1, 1))
    assert {one.answer for one in others} == {"10"}
    assert [one.truth for one in others] == [one.truth for one in samples]


def test_pictures_are_sorted_like_their_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packaged features have every second class, from the second on."""
    drawn = np.random.default_rng(3)
    labels = drawn.permutation(np.repeat(np.arange(6), 4))
    pixels = np.stack((labels, np.arange(24)), axis=1).astype(np.uint8)[:, :, None, None]
    part = Images(pixels, labels.astype(np.int64))
    loaded = {"cifar100-10k": LoadedImages(part, part)}
    monkeypatch.setattr(image_features, "find_images", loaded.__getitem__)
    image_features.find_pictures.cache_clear()
    found = image_features.find_pictures("cifar100-50")
    image_features.find_pictures.cache_clear()
    assert found is not None
    assert found["train"].shape == (3, 4, 2, 1, 1)
    for place, label in enumerate((1, 3, 5)):
        grouped = image_features.group_by_class(
            pixels[:, :, 0, 0].astype(np.float32), labels.astype(np.int64)
        )
        assert (found["test"][place, :, 0] == label).all()
        np.testing.assert_array_equal(
            found["test"][place, :, :, 0, 0], grouped[label].astype(np.uint8)
        )
    assert image_features.find_pictures("noise") is None
