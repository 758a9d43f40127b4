"""``qkvary train`` in several processes, as torchrun starts it: its ends, good and bad."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.tiny_training import TEXT
from tests.training.rank_server import Ended, RankServer

TINY = ("--steps", "2", "--evaluate-every", "2", "--threads", "1")
SIZES = (*TINY, "--batch-size", "4")


class Folder:
    """A text, and a folder for runs."""

    def __init__(self, server: RankServer, path: Path) -> None:
        self.server, self.path, self.runs = server, path, path / "runs"
        (path / "mine.txt").write_text(TEXT)

    def train(self, ranks: int, *words: str) -> Ended:
        command = ["train", "lm-tiny", "--data", str(self.path / "mine.txt")]
        environment = {"QKVARY_CACHE": str(self.path / "cache")}
        whole = [*command, "--out", str(self.runs), *words]
        self.server.start(self.path / "ranks", ranks, command=whole, environment=environment)
        return self.server.wait(self.path / "ranks")

    def records(self) -> dict[str, dict[str, Any]]:
        found = [json.loads(path.read_text()) for path in self.runs.glob("*/*/record.json")]
        return {record["variant"]: record for record in found}


@pytest.fixture
def folder(rank_server: RankServer, tmp_path: Path) -> Folder:
    return Folder(rank_server, tmp_path)


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
        ((*SIZES, "--sample", "the " * 50), "expected a prompt of at most 16 tokens, the length"),
    ],
)
def test_an_error_ends_all_at_once(folder: Folder, words: tuple[str, ...], message: str) -> None:
    """A process that waits for the others until it gives them up ends with 4 instead."""
    ended = folder.train(2, *words)
    assert ended.codes == (2, 2), ended.printed
    assert message in ended.printed[0]
    assert "Traceback" not in "".join(ended.printed)
    assert folder.records() == {}
