"""Starts runs of several processes through ``ranks.py``, and reads what became of them."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkvary.storage.journal import parse_journal
from tests.forked import ForkedPython

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


@dataclass(frozen=True)
class Ended:
    """The outcome of the processes of one run."""

    directory: Path
    codes: tuple[int, ...]

    @property
    def found(self) -> list[dict[str, Any]]:
        """What every process found; all of them must have come to an end."""
        assert set(self.codes) == {0}, self.printed
        return [
            json.loads((self.directory / f"rank-{rank}.json").read_text())
            for rank in range(len(self.codes))
        ]

    @property
    def printed(self) -> list[str]:
        paths = [self.directory / f"rank-{rank}.txt" for rank in range(len(self.codes))]
        return [path.read_text() if path.exists() else "" for path in paths]

    @property
    def sha(self) -> str:
        """The digest of what was trained, on which all processes agree."""
        (sha,) = {found["sha"] for found in self.found}
        return sha

    def log(self, *kinds: str) -> list[dict[str, Any]]:
        contents = parse_journal((self.directory / "metrics.jsonl").read_bytes(), where="log")
        assert contents.problems == ()
        return [event for event in contents.events if not kinds or event["event"] in kinds]

    @property
    def losses(self) -> list[float]:
        return [event["loss"] for event in self.log("train")]


class RankServer:
    """The process that forks ranks."""

    def __init__(self) -> None:
        self.process = ForkedPython(
            [sys.executable, "-m", "tests.training.ranks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=ENVIRONMENT,
        )

    def start(self, directory: Path, ranks: int, **order: Any) -> list[int]:
        """Start the processes of a run in a folder; return their numbers."""
        directory.mkdir(exist_ok=True)
        for path in directory.glob("rank-*"):
            path.unlink()
        assert self.process.stdin
        line = json.dumps({"directory": str(directory), "ranks": ranks, **order})
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._answer("started")

    def wait(self, directory: Path) -> Ended:
        """Wait for the end of what was started."""
        return Ended(directory, tuple(self._answer("ended")))

    def run(self, directory: Path, ranks: int, **order: Any) -> Ended:
        self.start(directory, ranks, **order)
        return self.wait(directory)

    def _answer(self, word: str) -> list[int]:
        assert self.process.stdout
        line = self.process.stdout.readline().split()
        assert line
        assert line[0] == word
        return [int(number) for number in line[1:]]

    def close(self) -> str:
        _out, err = self.process.communicate()
        return err
