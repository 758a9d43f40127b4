"""Images that a study needs are looked at before its first run."""

import gzip
from pathlib import Path

import pytest

from qkvary.studies.catalog import load_study
from qkvary.tasks.image_config import ImageTaskConfig
from tests.conftest import Typed


def test_images_that_are_missing_or_damaged_end_the_study_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    monkeypatch.setenv("QKVARY_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "cache"))
    out = ("--out", tmp_path / "runs")
    said = typed.error("study", "cifar10-quick", *out)
    assert "put data_batch_1.bin, data_batch_2.bin and test_batch.bin" in said
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    task = load_study("mnist-quick").settings[0].task
    assert isinstance(task, ImageTaskConfig)
    for file in task.images.files:
        (folder / f"{file}.gz").write_bytes(gzip.compress(b"no images"))
    for dry in ([], ["--dry-run"]):
        said = typed.error("study", "mnist-quick", *out, *dry, code=3)
        assert "expected a file of mnist with sha256" in said
        assert str(folder) in said
    archive = tmp_path / "data" / "tiny-imagenet-200.zip"
    archive.write_bytes(b"no archive")
    said = typed.error("study", "tiny-imagenet-paper", *out, code=3)
    assert f"expected a complete archive in {archive}" in said
    assert sorted(tmp_path.iterdir()) == [tmp_path / "data"]
