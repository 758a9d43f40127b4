"""The studies of image classification have the sizes that the papers, or their code, have."""

import gzip
from pathlib import Path

import pytest

from qkvary.arch.networks import VisionTransformerConfig
from qkvary.cli.main import main
from qkvary.papers.tables import load_published
from qkvary.studies.catalog import load_study
from qkvary.studies.study import Setting
from qkvary.tasks.config import ImageTaskConfig

COMPLETE = {"mnist", "fashion-mnist", "cifar10", "cifar100"}
QUICK = ("mnist-quick", "fashion-quick", "cifar10-quick", "cifar100-quick", "tiny-imagenet-quick")
PARTS = ("cifar10-quick", "cifar100-quick", "tiny-imagenet-quick")
"""Those of a part of a data set."""


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


@pytest.mark.parametrize(
    ("protocol", "steps"),
    [
        # 60,000 / 200 and 45,000 / 128 batches an epoch, or what is left of them.
        ("as-published", {"mnist": (6_000, 150), "cifar10": (14_040, 175)}),
        ("clean", {"mnist": (5_500, 137), "cifar10": (14_040, 175)}),
    ],
)
def test_epochs_and_validations(protocol: str, steps: dict[str, tuple[int, int]]) -> None:
    study = load_study("vision-published", protocol)
    for setting in study.settings:
        assert task_of(setting).splits == protocol
        if setting.task.name in steps:
            found = setting.training.steps, setting.training.evaluate_every
            assert found == steps[setting.task.name]


def test_what_is_done_instead_of_patches_that_do_not_divide_is_said() -> None:
    assert "Patches of 7 do not divide the 32 pixels" in load_study("vision-paper").description


@pytest.mark.parametrize("name", QUICK)
def test_quick_studies_have_a_clean_split_and_six_variants(name: str) -> None:
    study = load_study(name)
    (setting,) = study.settings
    assert task_of(setting).splits == "clean"
    assert len(study.variants) == 6
    assert len(study.seeds) == 3
    assert task_of(load_study(name, "as-published").settings[0]).splits == "as-published"


def test_published_figures_stand_beside_complete_data_sets_only() -> None:
    columns = {
        task
        for name in ("three-projections-table-3", "key-value-table-3")
        for column in load_published(name).columns
        for task in column.tasks
    }
    assert columns >= COMPLETE
    for name in QUICK:
        study = load_study(name)
        assert bool(study.published) == (study.settings[0].task.name in columns)
    for name in PARTS:
        assert not load_study(name).published
        assert "nothing published is compared with them" in load_study(name).description


def test_tiny_imagenet_is_that_of_the_text() -> None:
    study = load_study("tiny-imagenet-paper")
    (setting,) = study.settings
    network = network_of(setting)
    assert (network.image_size, network.patch_size, network.tokens) == (224, 16, 197)
    assert (network.d_model, network.num_layers, network.block.d_ff) == (768, 12, 3_072)
    assert (network.layers[0].num_heads, network.classes) == (12, 200)
    assert network.block.dropout == network.input_dropout == 0.1
    assert study.variants == ("QKV", "Q=K-V", "Q-K=V", "Q=K=V")
    assert len(study.cells()) == 8
    # 100,000 images, or 95,000 where some choose the epoch.
    assert setting.training.steps == 50 * 781
    clean = load_study("tiny-imagenet-paper", "clean").settings[0]
    assert clean.training.steps == 50 * 742
    assert "Our choices" in study.description


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


@pytest.mark.parametrize(
    "damaged", ["features/cifar100-resnet34.safetensors", "cifar100/train.bin"]
)
def test_damaged_features_end_the_study_before_it_begins(
    damaged: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("QKVARY_DATA", str(tmp_path / "data"))
    path = tmp_path / "data" / damaged
    path.parent.mkdir(parents=True)
    path.write_bytes(b"damaged")
    (path.parent / "test.bin").write_bytes(b"damaged")
    name = "anomaly-quick" if damaged.startswith("cifar") else "anomaly-paper"
    assert main(["study", name, "--out", str(tmp_path / "runs")]) == 3
    assert str(path) in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
