"""On a GPU a run learns what it learns on the CPU, alone and in one process of NCCL."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from qkvary.training.distribution import SINGLE_PROCESS, Distribution
from qkvary.training.loop import Outcome, train
from qkvary.training.parallel import Replicated, Sharded
from qkvary.training.processes import Collectives, RankInfo, connect
from tests.training.small_language import SmallLanguage, small_run
from tests.training.test_loop import after, log

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True, scope="module")
def gpu() -> None:
    """These tests are asked for where there is a GPU."""
    assert torch.cuda.is_available(), "expected a GPU"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, list[float]]:
    """The run on the CPU in float64, and its losses."""
    return run(tmp_path_factory.mktemp("cpu"), device="cpu")


def run(
    folder: Path, distribution: Distribution = SINGLE_PROCESS, device: str = "cuda", **fields: Any
) -> tuple[Outcome, list[float]]:
    """Train and return the outcome and the losses of all steps."""
    given = small_run(device=device, **fields)
    outcome = train(given, SmallLanguage(), folder, distribution=distribution)
    assert outcome.status == "done"
    return outcome, [event["loss"] for event in log(folder, "train")]


def check(found: tuple[Outcome, list[float]], expected: tuple[Outcome, list[float]]) -> None:
    """The same losses, metrics and weights but for the order of sums."""
    (one, losses), (other, wanted) = found, expected
    assert losses == pytest.approx(wanted, rel=1e-9)
    assert one.metrics["test_loss"] == pytest.approx(other.metrics["test_loss"], rel=1e-9)
    for name, weight in other.network.state_dict().items():
        there = one.network.state_dict()[name]
        assert torch.allclose(there.cpu(), weight, rtol=1e-7, atol=1e-9), name


@pytest.mark.parametrize("recompute_blocks", [False, True])
def test_a_run(
    tmp_path: Path, reference: tuple[Outcome, list[float]], recompute_blocks: bool
) -> None:
    check(run(tmp_path, recompute_blocks=recompute_blocks), reference)


def test_a_stopped_run_resumes(tmp_path: Path, reference: tuple[Outcome, list[float]]) -> None:
    outcome = train(small_run(device="cuda"), SmallLanguage(), tmp_path, stop=after(4))
    assert outcome.status == "stopped"
    check(run(tmp_path), reference)


def test_bfloat16_learns_alike(tmp_path: Path, reference: tuple[Outcome, list[float]]) -> None:
    _, losses = run(tmp_path, dtype="float32", precision="bf16")
    assert losses == pytest.approx(reference[1], rel=2e-2)


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
def test_compiled_blocks(tmp_path: Path, reference: tuple[Outcome, list[float]]) -> None:
    _, losses = run(tmp_path, dtype="float32", compile=True)
    assert losses == pytest.approx(reference[1], rel=1e-4)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collectives]:
    """The process group of one process with NCCL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setitem(os.environ, name, value)
    with connect(RankInfo(rank=0, size=1, local_rank=0), "cuda") as processes:
        yield processes


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_one_process_of_nccl(
    tmp_path: Path,
    alone: Collectives,
    reference: tuple[Outcome, list[float]],
    strategy: Literal["ddp", "fsdp"],
) -> None:
    kind = Replicated if strategy == "ddp" else Sharded
    check(run(tmp_path, distribution=kind(alone, "cuda")), reference)
