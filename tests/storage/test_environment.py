import json
import platform
from pathlib import Path

import pytest

from qkvary.storage import environment
from qkvary.storage.environment import (
    cache_directory,
    check_device,
    data_root,
    free_memory_bytes,
    machine,
    require_memory,
)
from qkvary.storage.errors import ResourceError, UsageError


def test_what_is_known_of_the_machine_can_be_stored() -> None:
    known = machine()
    assert json.loads(json.dumps(known)) == known
    assert known["python"] == platform.python_version()
    assert known["torch"].startswith("2.")
    assert known["cpu"]
    assert known["cpu_count"] >= 1


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:1234", "cuda:٣", "cpu:0", "CUDA"])
def test_other_names_are_no_devices(device: str) -> None:
    """The same rule for a network and for a run."""
    with pytest.raises(UsageError, match="expected a device such as cpu, cuda, cuda:1 or mps"):
        check_device(device)


def test_a_limit_of_the_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(environment, "_CONTAINER_LIMIT", limit)
    limit.write_text("max\n")
    assert (free_memory_bytes() or 0) > 4096
    limit.write_text("4096\n")
    assert free_memory_bytes() == 4096


def test_what_is_unknown_refuses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_MEMORY", tmp_path / "none")
    monkeypatch.setattr(environment.os, "sysconf", lambda _name: -1)
    assert free_memory_bytes() is None
    require_memory(2**80, "a tower takes", "build lower")


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "free_memory_bytes", lambda: 2**20)
    require_memory(2**20, "a tower takes", "build lower")
    with pytest.raises(ResourceError) as refused:
        require_memory(2**31, "a tower takes", "build lower")
    assert str(refused.value) == (
        "a tower takes at least 2 GiB of memory, but 1 MiB are free; build lower"
    )


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
