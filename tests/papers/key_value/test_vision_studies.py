"""The studies of image classification have the sizes that the papers, or their code, have."""

import gzip
from pathlib import Path

import pytest

from qkvary.arch.networks import VisionTransformerConfig
from qkvary.cli.main import main
from qkvary.studies.catalog import load_study
from qkvary.studies.study import Setting
from qkvary.tasks.config import ImageTaskConfig

COMPLETE = {"mnist", "fashion-mnist", "cifar10", "cifar100"}


def network_of(setting: Setting) -> VisionTransformerConfig:
    assert isinstance(setting.network, VisionTransformerConfig)
    return setting.network


def task_of(setting: Setting) -> ImageTaskConfig:
    assert isinstance(setting.task, ImageTaskConfig)
    return setting.task


@pytest.mark.parametrize(
    ("name", "scale", "optimizer", "decay", "colour", "count"),
    [
        ("vision-published", 1 / 16, "adamw", 0.01, {8}, 144),
        ("vision-paper", 1 / 8, "adam", 0.0, {4, 8}, 192),
    ],
)
def test_published_grids(
    name: str, scale: float, optimizer: str, decay: float, colour: set[int], count: int
) -> None:
    study = load_study(name)
    assert len(study.settings) == count
    assert len(study.cells()) == count * 6 * 2
    for setting in study.settings:
        network, training, task = network_of(setting), setting.training, task_of(setting)
        layer = network.layers[0]
        assert network.block.d_ff == network.d_head == network.d_model
        assert (network.block.norm_placement, network.block.activation) == ("pre-only", "gelu")
        assert (layer.bias, layer.out_bias, layer.position.plus_features) == (False, True, 50)
        assert (network.block.dropout, layer.dropout, network.input_dropout) == (0, 0, 0)
        assert training.schedule.name == "constant"
        assert training.optimizer.gradient_clip is None
        assert (training.optimizer.name, training.optimizer.weight_decay) == (optimizer, decay)
        assert training.batch_size == (128 if task.augment else 200)
        assert task.augment == task.name.startswith("cifar")
        assert training.test_at == "best"
    sizes = {
        (network.d_model, network.num_layers, network.layers[0].num_heads)
        for network in map(network_of, study.settings)
    }
    assert len(sizes) == 12
    four = next(one for one in study.settings if "d256-L2-H4-" in one.name)
    assert four.network.layers[0].score_scale == scale
    patches = {
        kind: {network_of(one).patch_size for one in study.settings if one.task.name == kind}
        for kind in COMPLETE
    }
    assert patches["mnist"] == patches["fashion-mnist"] == {4, 7}
    assert patches["cifar10"] == patches["cifar100"] == colour


def test_images_that_are_missing_or_damaged_end_the_study_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QKVARY_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    out = ["--out", str(tmp_path / "runs")]
    assert main(["study", "cifar10-quick", *out]) == 2
    assert "put data_batch_1.bin, data_batch_2.bin and test_batch.bin" in capsys.readouterr().err
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    task = task_of(load_study("mnist-quick").settings[0])
    for file in task.images.files:
        (folder / f"{file}.gz").write_bytes(gzip.compress(b"no images"))
    for dry in ([], ["--dry-run"]):
        assert main(["study", "mnist-quick", *out, *dry]) == 3
        assert f"expected an IDX file in {folder}" in capsys.readouterr().err
    archive = tmp_path / "data" / "tiny-imagenet-200.zip"
    archive.write_bytes(b"no archive")
    assert main(["study", "tiny-imagenet-paper", *out]) == 3
    assert f"expected a whole archive in {archive}" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == [tmp_path / "data"]
