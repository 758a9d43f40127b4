"""``qkvary data features`` with a small ResNet of random weights and a few images."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from transformers import ResNetModel

from qkvary.checkpoints.huggingface import image_features as descriptions
from qkvary.cli.main import main
from qkvary.data import image_features
from tests.cli.small_resnet import write_resnet


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_resnet(tmp_path, monkeypatch)


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
    np.testing.assert_allclose(found.train[1, 1], expected[0], rtol=1e-3, atol=1e-3)
    image_features.load_features.cache_clear()


def test_other_networks_are_refused(
    weights: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["data", "features", "--weights", str(weights.parent)]) == 2
    assert "expected a folder of ResNet-34 with config.json and" in capsys.readouterr().err
    monkeypatch.setattr(descriptions, "DEPTHS", (3, 4, 6, 3))
    assert main(["data", "features", "--weights", str(weights)]) == 2
    assert "expected a ResNet-34, basic with depths (3, 4, 6, 3), got" in capsys.readouterr().err
