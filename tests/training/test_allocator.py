"""Freed memory stays with the process, if the allocator supports it."""

import platform

import pytest

from qkvary.training.memory import keep_freed_memory
from tests.conftest import Runner

COUNT_FAULTS = """
import resource
import torch
from qkvary.training.memory import keep_freed_memory

def step():
    return [torch.ones(2**21) for _ in range(8)]

def count():
    step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
left_alone = count()
print(keep_freed_memory(), left_alone, count())
"""


@pytest.mark.slow
def test_freed_pages_are_reused(run_python: Runner) -> None:
    result = run_python(["-c", COUNT_FAULTS])
    assert result.returncode == 0, result.stderr
    listens, left_alone, kept = result.stdout.split()
    if listens == "True":
        assert int(kept) < 0.1 * int(left_alone)


@pytest.mark.parametrize(("system", "library"), [("Darwin", ""), ("Linux", "musl")])
def test_other_allocators_are_left_alone(
    system: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "libc_ver", lambda: (library, ""))
    assert not keep_freed_memory()
