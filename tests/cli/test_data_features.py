"""``qkvary data features`` with a small ResNet of random weights and a few images."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import ResNetConfig, ResNetModel

from qkvary.checkpoints.huggingface import image_features as descriptions
from qkvary.cli.main import main
from qkvary.data import image_features
from qkvary.data.feature_sets import FEATURE_SETS
from qkvary.data.images import Images, LoadedImages

CLASSES = 3


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    about = dataclasses.replace(
        FEATURE_SETS["cifar100-resnet34"], classes=CLASSES, train_images=2, test_images=1, width=12
    )
    monkeypatch.setitem(image_features.FEATURE_SETS, about.name, about)
    pixels = np.random.default_rng(1).integers(0, 256, (9, 3, 32, 32)).astype(np.uint8)
    train = Images(pixels[:6], np.array([2, 0, 1, 1, 0, 2]))
    loaded = LoadedImages(train=train, test=Images(pixels[6:], np.array([1, 2, 0])))
    monkeypatch.setattr(descriptions, "load_images", {"cifar100": loaded}.__getitem__)
    monkeypatch.setattr(descriptions, "IMAGES_PER_PART", 4)
    monkeypatch.setattr(descriptions, "IMAGE_SIZE", 40)
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(3)
    config = ResNetConfig(embedding_size=4, hidden_sizes=[4, 12], depths=[1, 1], layer_type="basic")
    ResNetModel(config).save_pretrained(tmp_path / "resnet")
    return tmp_path / "resnet"


def test_images_are_described_once(
    weights: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    described: list[int] = []
    describe = descriptions.describe_pixels

    def interrupt_second(network: ResNetModel, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        if len(described) == 1:
            described.append(0)
            raise KeyboardInterrupt
        described.append(len(pixels))
        return describe(network, pixels)

    monkeypatch.setattr(descriptions, "describe_pixels", interrupt_second)
    words = ["data", "features", "--weights", str(weights)]
    assert main(words) == 130
    assert main(words) == 0
    assert described == [4, 0, 2, 3]
    assert "9 images in" in capsys.readouterr().out
    found = image_features.load_features("cifar100-resnet34")
    # The second image of class 1 is the fourth training image.
    images = descriptions.load_images("cifar100").train.pixels
    expected = describe(ResNetModel.from_pretrained(weights).eval(), images[3:4])
    np.testing.assert_allclose(found.train.features[1, 1], expected[0], rtol=1e-3, atol=1e-3)
    image_features.load_features.cache_clear()


def test_other_folders_are_refused(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "features", "--weights", str(weights.parent)]) == 2
    assert "expected a folder of ResNet-34 with config.json and" in capsys.readouterr().err
