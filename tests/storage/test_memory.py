"""Free memory is measured, and a request for more is refused."""

from pathlib import Path

import pytest

from qkvary.storage import environment
from qkvary.storage.environment import free_memory_bytes, require_memory
from qkvary.storage.errors import ResourceError


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
        "a tower takes at least 2 GiB of memory, 1 MiB are free; build lower"
    )
