"""What a study of scales refuses before it trains anything."""

from pathlib import Path

import pytest

from qkvary.cli import _bench_scales
from qkvary.cli.main import main
from qkvary.storage.errors import UsageError


@pytest.fixture(autouse=True)
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: object, **__: object) -> None:
        raise AssertionError("something was trained")

    monkeypatch.setattr(_bench_scales, "run_study", train)


def test_what_draws_the_picture_is_asked_for_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find() -> None:
        raise UsageError("expected matplotlib for a picture, got an installation without it")

    monkeypatch.setattr(_bench_scales, "load_scale_figure", find)
    assert main(["bench", "scales", "--out", str(tmp_path / "runs"), "--to", str(tmp_path)]) == 2
    assert "expected matplotlib for a picture" in capsys.readouterr().err


def test_a_place_that_cannot_be_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    to = tmp_path / "file" / "below"
    assert main(["bench", "scales", "--out", str(tmp_path / "runs"), "--to", str(to)]) == 2
    assert "expected --to with a folder, or a file in one, got " in capsys.readouterr().err
