"""The folders of local data sets and of the cache."""

from pathlib import Path

import pytest

from qkvary.storage.environment import cache_directory, data_root


def test_the_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QKVARY_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory() == tmp_path / "own"
    monkeypatch.delenv("QKVARY_CACHE")
    assert cache_directory() == tmp_path / "shared" / "qkvary"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_directory() == tmp_path / "home" / ".cache" / "qkvary"

    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", homeless)
    assert cache_directory() is None


def test_the_folder_of_data_sets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QKVARY_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.setenv("QKVARY_DATA", "")
    assert data_root() is None
