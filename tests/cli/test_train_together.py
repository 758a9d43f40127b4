"""``qkvary train`` in several processes, as torchrun starts it: its ends, good and bad."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.tiny_training import TEXT
from tests.storage.quick_disk import quick_folder
from tests.training.rank_server import Ended, RankServer

TINY = ("--steps", "2", "--evaluate-every", "2", "--threads", "1")
SIZES = (*TINY, "--batch-size", "4")
LONG = ("--steps", "40", "--batch-size", "4", "--evaluate-every", "40", "--threads", "1")
OFTEN = ("--checkpoint-seconds", "0.01")
quick_path = pytest.fixture(quick_folder)


class Folder:
    """A text, and runs beside it."""

    def __init__(self, server: RankServer, path: Path) -> None:
        self.server, self.path, self.runs = server, path, path / "runs"
        (path / "mine.txt").write_text(TEXT)

    def start(self, ranks: int, *words: str) -> list[int]:
        command = ["train", "lm-tiny", "--data", str(self.path / "mine.txt")]
        environment = {"QKVARY_CACHE": str(self.path / "cache")}
        whole = [*command, "--out", str(self.runs), *words]
        return self.server.start(self.ranks, ranks, command=whole, environment=environment)

    @property
    def ranks(self) -> Path:
        return self.path / "ranks"

    def train(self, ranks: int, *words: str) -> Ended:
        self.start(ranks, *words)
        return self.server.wait(self.ranks)

    def records(self) -> dict[str, dict[str, Any]]:
        found = [json.loads(path.read_text()) for path in self.runs.glob("*/*/record.json")]
        return {record["variant"]: record for record in found}

    def checkpoints(self) -> list[Path]:
        return list(self.runs.glob("*/*/checkpoints/step-*/MANIFEST.json"))


@pytest.fixture
def folder(rank_server: RankServer, quick_path: Path) -> Folder:
    return Folder(rank_server, quick_path)


@pytest.fixture(name="whole", scope="module")
def undisturbed(rank_server: RankServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What two processes end with that nobody stopped."""
    whole = Folder(rank_server, tmp_path_factory.mktemp("whole"))
    assert whole.train(2, *LONG).codes == (0, 0)
    return whole.records()["QKV@rotary"]["state_sha256"]


# The tests below train with DDP.
@pytest.mark.parametrize("strategy", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"])
def test_two_processes_train_two_variants(folder: Folder, strategy: str) -> None:
    words = (*SIZES, "--variant", "QKV", "Q-K=V", "--strategy", strategy, "--sample", "the ")
    ended = folder.train(2, *words)
    assert ended.codes == (0, 0), ended.printed
    records = folder.records()
    assert set(records) == {"QKV@rotary", "Q-K=V@rotary"}
    assert [record["environment"]["processes"] for record in records.values()] == [2, 2]
    assert "step 2: the " in ended.printed[0]
    assert (folder.runs / "reports" / "train-lm-tiny-on-mine" / "report.html").is_file()
    # All is done: whoever asks again is told so by any number of processes.
    assert folder.train(1, *words).codes == (0,)
    assert folder.records() == records


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*TINY, "--batch-size", "3"), "3"),
        ((*SIZES, "--sample", "the " * 50), "expected a prompt of at most the 16 tokens of a row"),
    ],
)
def test_an_error_ends_all_at_once(folder: Folder, words: tuple[str, ...], message: str) -> None:
    """A process that waits for the others until it gives them up ends with 4 instead."""
    ended = folder.train(2, *words)
    assert ended.codes == (2, 2), ended.printed
    assert message in ended.printed[0]
    assert "Traceback" not in "".join(ended.printed)
    assert folder.records() == {}


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_each_process_may_be_asked_to_stop_and_no_checkpoint_is_lost(
    folder: Folder, whole: str, rank: int
) -> None:
    pids = folder.start(2, *LONG, *OFTEN)
    while not folder.checkpoints():
        time.sleep(0.005)
    os.kill(pids[rank], signal.SIGTERM)
    ended = folder.server.wait(folder.ranks)
    assert ended.codes[0] == 143, ended.printed
    assert ended.codes[1] in (0, 143), ended.printed
    assert "stopped; the same command resumes" in ended.printed[0]
    assert folder.records() == {}
    assert not (folder.runs / "reports").exists()
    shutil.copytree(folder.runs, folder.path / "stopped")
    assert folder.train(2, *LONG).codes == (0, 0)
    assert folder.records()["QKV@rotary"]["state_sha256"] == whole

    shutil.rmtree(folder.runs)
    (folder.path / "stopped").rename(folder.runs)
    damage_all_checkpoints(folder)


def damage_all_checkpoints(folder: Folder) -> None:
    """They are left alone by all."""
    for path in folder.runs.glob("*/*/checkpoints/step-*/*.safetensors"):
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    kept = sorted(folder.runs.glob("*/*/checkpoints/*/*"))
    ended = folder.train(2, *LONG)
    assert ended.codes == (3, 3), ended.printed
    (run,) = (path.parent for path in folder.runs.glob("*/*/checkpoints"))
    assert f"; move {run} away to start again" in ended.printed[0]
    assert sorted(folder.runs.glob("*/*/checkpoints/*/*")) == kept
