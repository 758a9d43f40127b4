"""Addresses where no Ray cluster answers; no test here starts one."""

from pathlib import Path

import pytest

from qkvary.cli.main import main
from qkvary.storage.errors import UsageError
from qkvary.studies.running.executors.contract import ClusterOptions
from qkvary.studies.running.executors.ray import RayExecutor

pytestmark = pytest.mark.cluster


@pytest.fixture(autouse=True)
def disconnected() -> None:
    """Other tests leave this process connected."""
    from ray import shutdown

    shutdown()


def test_a_cluster_that_does_not_answer_is_named() -> None:
    with pytest.raises(UsageError, match="Ray cluster 'nowhere'"):
        RayExecutor(ClusterOptions(address="nowhere"))


def test_the_address_that_a_killed_cluster_left_is_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    check_refused("", tmp_path, capfd)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "localhost:99999"])
def test_an_address_where_nothing_listens_is_one_sentence(
    address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check_refused(address, tmp_path, capfd)


def check_refused(address: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["study", "quickstart", "--out", str(folder / "runs"), "--executor", "ray"]
    assert main([*words, *(["--address", address] if address else [])]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert f"no Ray cluster answers at '{address}" in printed.err
