"""Checkpoints are found by path, by name in the package, and by name below QKVARY_DATA."""

from pathlib import Path

import pytest

from qkvary.data.checkpoint_names import (
    NETWORK_NAME,
    PACKAGED,
    checkpoint_names,
    find_checkpoint,
    packaged_names,
)
from qkvary.storage.errors import UsageError


def test_packaged_models_have_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("QKVARY_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert packaged_names() == checkpoint_names() == ("tiny", "tiny-k")
    assert find_checkpoint("tiny-k") == find_checkpoint("Tiny_K") == PACKAGED / "tiny-k"
    (tmp_path / "tiny-k").mkdir()
    assert find_checkpoint("tiny-k") == Path("tiny-k")


def test_an_unknown_checkpoint_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"got tiny-j, which does not exist; did you mean tiny-k"):
        find_checkpoint("tiny-j")
    with pytest.raises(UsageError, match=r"got nowhere/tiny-k, which does not exist$"):
        find_checkpoint("nowhere/tiny-k")


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[str, str]:
    """Return the keys of two runs in ``runs``; the second has no network."""
    monkeypatch.chdir(tmp_path)
    first, second = "3f2a" + "0" * 60, "3f2b" + "0" * 60
    (tmp_path / "runs" / "3f" / first / NETWORK_NAME).mkdir(parents=True)
    (tmp_path / "runs" / "3f" / second).mkdir()
    return first, second


def test_a_run_is_found_by_its_folder_and_by_the_start_of_its_key(
    keys: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    network = Path("runs", "3f", keys[0], NETWORK_NAME)
    for reference in ("3f2a", "3F2A0", keys[0], network.parent, f"{network.parent}/"):
        assert find_checkpoint(reference) == network
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert find_checkpoint("../runs/3f2a") == ".." / network


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("3", "2 runs in runs start with '3'; give a longer key"),
        ("3f2", "2 runs in runs start with '3f2'; give a longer key"),
        ("3f2b", "got the run 3f2b00000000, which has no stored network: the run is not"),
        ("runs/3f/" + "3f2b" + "0" * 60, "got the run 3f2b00000000, which has no stored"),
        ("3f2c", "expected a checkpoint, got 3f2c, which does not exist"),
        ("other/3f2a", "expected a checkpoint, got other/3f2a, which does not exist"),
    ],
)
@pytest.mark.usefixtures("keys")
def test_runs_without_a_network(reference: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_checkpoint(reference)
