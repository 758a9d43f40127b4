"""A device that is not there, memory that runs out."""

import dataclasses
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from qkvary.checkpoints.models import LoadedModel
from qkvary.storage.environment import is_out_of_memory
from qkvary.storage.errors import ResourceError, UsageError
from qkvary.training.distribution import Gradients
from qkvary.training.loop import train
from qkvary.training.memory import keep_freed_memory
from tests import forked
from tests.checkpoints.test_models import make_model
from tests.conftest import Runner
from tests.training.toy import ToyTask, toy_run


def test_a_run_on_a_gpu_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="got 'cuda:99'; choices: cpu"):
        train(dataclasses.replace(toy_run(), device="cuda:99"), ToyTask(), tmp_path)
    with pytest.raises(UsageError, match="got 'cuda:99'; choices: cpu"):
        LoadedModel(make_model(), None).to("cuda:99", None)
    assert not list(tmp_path.iterdir())


TOO_MUCH = """
import resource, sys, torch
from qkvary.checkpoints.models import LoadedModel
from qkvary.storage.environment import is_out_of_memory
torch.ones(1)
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), int(sys.argv[1])))
try:
    torch.ones(2**34)
except (MemoryError, RuntimeError) as error:
    print(is_out_of_memory(error))
"""


def test_what_torch_says_without_memory_is_known() -> None:
    # What the fork has already counts too.
    command = [sys.executable, "-c", TOO_MUCH, str(2**35)]
    done = forked.run(command, input="", capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))


@pytest.mark.parametrize("step", [0, 4])
def test_a_run_that_ran_out_of_memory_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    places = [tmp_path / "whole", tmp_path / "cut"]
    for place in places:
        place.mkdir()
    whole = train(toy_run(), ToyTask(), places[0])
    usual = Gradients.accumulate

    def accumulate(self: Gradients, now: int, stop: Callable[[], bool]) -> float | None:
        if now == step:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return usual(self, now, stop)

    monkeypatch.setattr(Gradients, "accumulate", accumulate)
    with pytest.raises(ResourceError) as caught:
        train(toy_run(), ToyTask(), places[1], checkpoint_seconds=0.0)
    said, rows = str(caught.value), toy_run().training.batch_size
    assert f"out of memory at step {step}: a micro-batch of {rows} rows of " in said
    options = f"--micro-batch-size {rows // 2} or --recompute-blocks"
    assert said.endswith(f"resume with `qkvary train ... --allow-change` and {options}")
    assert caught.value.exit_code == 4
    monkeypatch.setattr(Gradients, "accumulate", usual)
    assert train(toy_run(), ToyTask(), places[1]).state_sha256 == whole.state_sha256


COUNT_FAULTS = """
import resource
import torch
from qkvary.training.distribution import keep_freed_memory

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
