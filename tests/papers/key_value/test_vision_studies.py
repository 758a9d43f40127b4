"""Images that a study needs are looked at before its first run."""

import gzip
from pathlib import Path

import pytest

from qkvary.cli.main import main
from qkvary.studies.catalog import load_study
from qkvary.studies.study import Setting
from qkvary.tasks.config import ImageTaskConfig


def task_of(setting: Setting) -> ImageTaskConfig:
    assert isinstance(setting.task, ImageTaskConfig)
    return setting.task


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
        said = capsys.readouterr().err
        assert "expected a file of mnist with sha256" in said
        assert str(folder) in said
    archive = tmp_path / "data" / "tiny-imagenet-200.zip"
    archive.write_bytes(b"no archive")
    assert main(["study", "tiny-imagenet-paper", *out]) == 3
    assert f"expected a complete archive in {archive}" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == [tmp_path / "data"]
