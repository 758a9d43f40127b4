"""Sets of ten images: their composition, what their order gives away, and who looks at it."""

import dataclasses

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qkvary.arch.labels import parse_variant
from qkvary.data.image_features import ImageFeatures
from qkvary.papers.key_value.set_anomaly import set_network
from qkvary.tasks import anomaly
from qkvary.tasks.anomaly import AnomalyTask
from qkvary.tasks.image_config import AnomalyOrder, AnomalyTaskConfig

CLASSES, IMAGES, HELD_OUT, TESTED = 5, 100, 10, 11


@pytest.fixture(autouse=True)
def _numbered_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the features: an image says its class, its number and its split."""

    def describe(images: int, split: int) -> NDArray[np.float32]:
        grid = np.indices((CLASSES, images)).astype(np.float32)
        return np.stack((*grid, np.full_like(grid[0], split)), axis=-1)

    made = ImageFeatures(describe(IMAGES, 0), describe(TESTED, 1))
    monkeypatch.setattr(anomaly, "load_features", lambda *_: made)


def make_task(order: AnomalyOrder = "shuffled") -> AnomalyTask:
    return AnomalyTask(AnomalyTaskConfig(features="noise", order=order, set_size=10))


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


@pytest.mark.parametrize("label", ["QKV", "Q-K=V", "(Q=K-V)+", "Q-MQA", "I-K-V", "Q=K-V@soft"])
def test_answers_move_with_the_images_unless_positions_are_known(label: str) -> None:
    images = torch.randn(3, 10, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    order = torch.randperm(10, generator=torch.Generator().manual_seed(3))
    moved = logits_of(label, images[:, order])
    difference = (moved - logits_of(label, images)[:, order]).abs().max()
    assert (difference > 1e-3) == ("+" in label)
    assert difference < 1e-9 or "+" in label
