"""When any process dies, all end soon, and a restart gives the same result, bit by bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from qkvary.storage.durable import TEMPORARY_PREFIX
from tests.storage.damage import trials
from tests.training.rank_server import ENVIRONMENT, ROOT, Ended, RankServer

GONE_SECONDS = 30.0
MARK = "QKVARY_TEST_RUN"


@pytest.fixture(scope="module")
def reference(
    rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int, str], Ended]:
    """The result without a death."""
    return cache(
        lambda ranks, strategy: rank_server.run(
            tmp_path_factory.mktemp("whole"), ranks, strategy=strategy
        )
    )


def wait_until(is_so: Callable[[], bool], seconds: float = GONE_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def has_checkpoint(directory: Path) -> bool:
    return any(directory.glob("checkpoints/step-*"))


def kill(pids: list[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


PACED: dict[str, Any] = {"checkpoint_seconds": 0.0, "pace": 0.02}


@pytest.mark.parametrize(
    ("strategy", "victims"),
    [
        ("fsdp", [0]),
        pytest.param("ddp", [1], marks=pytest.mark.slow),
        pytest.param("ddp", [0, 1], marks=pytest.mark.slow),
    ],
)
def test_a_process_ends_when_another_is_lost(
    rank_server: RankServer,
    reference: Callable[[int, str], Ended],
    tmp_path: Path,
    strategy: str,
    victims: list[int],
) -> None:
    """Without torchrun no other process ends them."""
    pids = rank_server.start(tmp_path, 2, strategy=strategy, **PACED)
    wait_until(lambda: has_checkpoint(tmp_path))
    start = time.monotonic()
    kill([pids[victim] for victim in victims])
    ended = rank_server.wait(tmp_path)
    assert time.monotonic() - start < GONE_SECONDS
    for rank, code in enumerate(ended.codes):
        assert code == (-signal.SIGKILL if rank in victims else 4)
        if rank not in victims:
            assert "ResourceError: another process of this run has died" in ended.printed[rank]
    again = rank_server.run(tmp_path, 2, strategy=strategy)
    assert again.sha == reference(2, strategy).sha
    assert again.losses == reference(2, strategy).losses


def test_a_signal_to_one_process_stops_all_with_one_checkpoint(
    rank_server: RankServer, tmp_path: Path
) -> None:
    pids = rank_server.start(tmp_path, 2, strategy="fsdp", pace=0.05)
    wait_until(lambda: b'"train"' in journal(tmp_path))
    kill([pids[1]], signal.SIGTERM)
    stopped = rank_server.wait(tmp_path)
    first, second = stopped.found
    assert first["status"] == second["status"] == "stopped"
    assert first["metrics"]["steps"] == second["metrics"]["steps"]
    (folder,) = (tmp_path / "checkpoints").iterdir()
    assert int(folder.name.removeprefix("step-")) == first["metrics"]["steps"] < 9


def journal(directory: Path) -> bytes:
    path = directory / "metrics.jsonl"
    return path.read_bytes() if path.exists() else b""


def test_one_that_hangs_is_given_up(rank_server: RankServer, tmp_path: Path) -> None:
    order = {"sleep_after": 2, "sleep_rank": 1, "sleep_seconds": 1.3, "patience": 0.4}
    ended = rank_server.run(tmp_path, 2, **order)
    assert ended.codes == (4, 4)
    assert "has died or does not respond" in ended.printed[0]


# ---- killed any number of times

KILLED_RUN = {"steps": 12, "dtype": "float32", "dropout": 0.1}
"""Settings of a language model that accumulates gradients over micro-batches."""


def result(ended: Ended) -> Any:
    """Weights, metrics and the log without times and resumptions."""
    log = [
        {name: value for name, value in event.items() if name != "seconds"}
        for event in ended.log()
        if event["event"] != "resumed"
    ]
    return ended.sha, ended.found[0]["metrics"], log


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("ranks", "strategy"),
    [
        (1, "ddp"),
        *(
            pytest.param(ranks, strategy, marks=pytest.mark.slow)
            for ranks in (2, 4)
            for strategy in ("ddp", "fsdp")
        ),
    ],
)
def test_killed_runs_end_bit_by_bit_like_others(
    rank_server: RankServer, tmp_path: Path, ranks: int, strategy: str
) -> None:
    """Some processes of a run are killed one to five times at random; then it may end."""
    order: dict[str, Any] = {"strategy": strategy, "run": KILLED_RUN, "patience": 10.0}
    whole = result(rank_server.run(tmp_path / "whole", ranks, **order))
    start = time.monotonic()
    dense = rank_server.run(tmp_path / "dense", ranks, checkpoint_seconds=0.0, **order)
    seconds = time.monotonic() - start
    assert result(dense) == whole
    killed, count = 0, trials("KILLS", 3)
    for seed in range(count):
        generator, path = random.Random(seed), tmp_path / str(seed)
        for _ in range(generator.randint(1, 5)):
            order["checkpoint_seconds"] = generator.choice([0.0, 0.0, 0.02])
            order["keep"] = generator.choice([1, 2, 5])
            pids = rank_server.start(path, ranks, **order)
            time.sleep(generator.uniform(0, seconds))
            kill(generator.sample(pids, generator.randint(1, ranks)))
            codes = rank_server.wait(path).codes
            assert set(codes) <= {0, -signal.SIGKILL, *([4] if ranks > 1 else [])}
            killed += -signal.SIGKILL in codes
        assert result(rank_server.run(path, ranks, **order)) == whole, f"seed {seed}"
        assert not list(path.rglob(f"{TEMPORARY_PREFIX}*"))
    assert killed >= count / 3


# ---- under torchrun


class Launched:
    """A run that torchrun started."""

    def __init__(self, directory: Path, ranks: int, **order: Any) -> None:
        self.directory, self.mark = directory, uuid.uuid4().hex
        for path in directory.glob("pid-*"):
            path.unlink()
        program = ["-m", "tests.training.ranks", json.dumps({"directory": str(directory), **order})]
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        self.agent = subprocess.Popen(
            [sys.executable, *launcher, *program],
            cwd=ROOT,
            env={**ENVIRONMENT, MARK: self.mark, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def ranks(self) -> list[int]:
        return [int(path.read_text()) for path in sorted(self.directory.glob("pid-*"))]

    def living(self) -> list[int]:
        """Every process that this run started."""
        names = [path.name for path in Path("/proc").iterdir()]
        return [int(name) for name in names if name.isdecimal() and self.owns(int(name))]

    def owns(self, pid: int) -> bool:
        try:
            place = Path("/proc") / str(pid)
            is_dead = (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            return (
                not is_dead and f"{MARK}={self.mark}".encode() in (place / "environ").read_bytes()
            )
        except OSError:
            return False

    def end(self, victims: str) -> None:
        """Kill all processes, and wait for their end."""
        wait_until(lambda: has_checkpoint(self.directory), 120.0)
        ranks = self.ranks()
        pids = {"agent": [self.agent.pid], "one": ranks[:1], "all": ranks}[victims]
        assert len(self.living()) >= 1 + len(ranks)
        kill(pids)
        wait_until(lambda: not self.living())
        assert self.agent.wait(GONE_SECONDS) != 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("victims", ["agent", "one", "all"])
@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 2), ("fsdp", 2), ("ddp", 4), ("fsdp", 4)])
def test_torchrun_and_all_that_it_started_are_gone(
    rank_server: RankServer,
    reference: Callable[[int, str], Ended],
    tmp_path: Path,
    strategy: str,
    ranks: int,
    victims: str,
) -> None:
    launched = Launched(tmp_path, ranks, strategy=strategy, checkpoint_seconds=0.0, pace=0.4)
    launched.end(victims)
    again = rank_server.run(tmp_path, ranks, strategy=strategy)
    assert again.sha == reference(ranks, strategy).sha
    assert again.losses == reference(ranks, strategy).losses
