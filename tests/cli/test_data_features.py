"""``qkvary data features`` with a small ResNet of random weights and a few images."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load, save
from transformers import ResNetModel

from qkvary.checkpoints.huggingface import image_features as descriptions
from qkvary.data import image_features
from qkvary.data.feature_sets import hash_features
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.studies.catalog import load_study
from tests.cli.small_resnet import write_resnet
from tests.conftest import Typed


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_resnet(tmp_path, monkeypatch)


def test_images_are_described_once(
    weights: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
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
    words = ("data", "features", "--weights", weights)
    typed(*words, code=130)
    assert "9 images in" in typed(*words)
    assert described == [4, 0, 2, 3]
    sha256 = hash_features("cifar100-resnet34")
    found = image_features.load_features("cifar100-resnet34", sha256)
    # The second image of class 1 is the fourth training image.
    images = descriptions.load_images("cifar100").train.pixels
    expected = describe(ResNetModel.from_pretrained(weights).eval(), images[3:4])
    np.testing.assert_allclose(found.train[1, 1], expected[0], rtol=1e-3, atol=1e-3)
    image_features.load_features.cache_clear()


@pytest.mark.parametrize("damage", ["cut", "empty", "missing"])
def test_damaged_weights_are_refused(weights: Path, damage: str, typed: Typed) -> None:
    path = weights / "model.safetensors"
    data = path.read_bytes()
    tensors = load(data)
    del tensors["embedder.embedder.convolution.weight"]
    path.write_bytes({"cut": data[:-5], "empty": b"", "missing": save(tensors)}[damage])
    whole = "all weight tensors of ResNet-34", "a complete file of weights"
    what = whole[0] if damage == "missing" else whole[1]
    said = typed.error("data", "features", "--weights", weights, code=3)
    assert f"expected {what} in {path}" in said
    assert not (weights.parent / "cache").exists()


def test_a_damaged_part_is_named(weights: Path, tmp_path: Path) -> None:
    descriptions.describe_cifar100(weights, tmp_path / "parts")
    part = min((tmp_path / "parts").rglob("*.safetensors"))
    part.write_bytes(b"damaged")
    with pytest.raises(DamagedError, match=part.name):
        descriptions.describe_cifar100(weights, tmp_path / "parts")


def test_features_of_other_weights_are_other_data(
    weights: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_study("anomaly-paper").cells()[0].run
    keys = {before.run_key}
    shas: list[str] = []
    for seed in (3, 4):
        write_resnet(weights.parent, monkeypatch, seed=seed)
        shas.append(typed.json("data", "features", "--weights", weights)["sha256"])
        cells = load_study("anomaly-paper").cells()
        assert {cell.run.task.features_sha256 for cell in cells} == {shas[-1]}
        keys.add(cells[0].run_key)
    assert len(keys) == 3
    load_features = image_features.load_features
    for sha256 in (None, shas[0]):
        with pytest.raises(UsageError, match=rf"task names, {sha256}, got {shas[1]}"):
            load_features("cifar100-resnet34", sha256)
    assert load_features("cifar100-resnet34", shas[1]).train.shape == (3, 2, 12)
    load_features.cache_clear()
