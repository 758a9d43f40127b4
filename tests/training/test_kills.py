"""T1: a run that is killed any number of times ends, bit by bit, as one that was not."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from qkvary.storage.durable import TEMPORARY_PREFIX
from qkvary.storage.journal import parse_journal
from tests.storage.damage import trials
from tests.storage.quick_disk import quick_folder

ROOT = Path(__file__).resolve().parents[2]
STEPS = 30
quick_path = pytest.fixture(quick_folder)
quick_module_path = pytest.fixture(quick_folder, scope="module")


class Killable:
    """Runs in processes that can be killed."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.killable"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        )

    def start(self, directory: Path, *, seconds: float, keep: int = 2, mutant: str = "") -> int:
        order = {
            "directory": str(directory),
            "steps": STEPS,
            "checkpoint_seconds": seconds,
            "keep": keep,
            "mutant": mutant,
        }
        assert self.process.stdin
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.answer("started"))

    def answer(self, word: str) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline().split()
        assert line[0] == word
        return line[1]

    def run(self, directory: Path, *, kill_after: float | None, **options: Any) -> int:
        """Start a run, kill it after that many seconds; return its exit code."""
        child = self.start(directory, **options)
        if kill_after is not None:
            time.sleep(kill_after)
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        return int(self.answer("ended"))

    def close(self) -> str:
        _out, err = self.process.communicate()
        return err


@pytest.fixture(scope="module")
def killable() -> Iterator[Killable]:
    runs = Killable()
    yield runs
    assert runs.close() == "", "a run had something to complain about"


@pytest.fixture(scope="module")
def reference(killable: Killable, quick_module_path: Path) -> tuple[Any, float]:
    """What comes out without a kill, and how long it takes with a checkpoint at every step."""
    directory, dense = quick_module_path / "reference", quick_module_path / "dense"
    for path in (directory, dense):
        path.mkdir()
    assert killable.run(directory, kill_after=None, seconds=1e9) == 0
    start = time.monotonic()
    assert killable.run(dense, kill_after=None, seconds=0.0) == 0
    seconds = time.monotonic() - start
    assert result(dense) == result(directory)
    return result(directory), seconds


def result(directory: Path) -> Any:
    """Weights, optimizer, metrics and the log without times and resumptions."""
    contents = parse_journal((directory / "metrics.jsonl").read_bytes(), where="log")
    assert contents.problems == ()
    log = [
        {name: value for name, value in event.items() if name != "seconds"}
        for event in contents.events
        if event["event"] != "resumed"
    ]
    return json.loads((directory / "result.json").read_text()), log


def killed_runs(
    killable: Killable, directory: Path, seed: int, seconds: float, mutant: str = ""
) -> tuple[Any, int]:
    """Kill a run one to five times at random, then let it end."""
    generator = random.Random(seed)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    kills = 0
    options: dict[str, Any] = {"seconds": generator.choice([0.0, 0.0, 0.02]), "mutant": mutant}
    for _ in range(generator.randint(1, 5)):
        options["keep"] = generator.choice([1, 2, 5])
        code = killable.run(directory, kill_after=generator.uniform(0, seconds), **options)
        assert code in (0, -9)
        kills += code == -9
    assert killable.run(directory, kill_after=None, **options) == 0
    left = [path.name for path in directory.rglob("*") if path.name.startswith(TEMPORARY_PREFIX)]
    assert left == []
    return result(directory), kills


def check(killable: Killable, reference: tuple[Any, float], quick_path: Path, count: int) -> None:
    expected, seconds = reference
    kills = 0
    for seed in range(count):
        found, killed = killed_runs(killable, quick_path / "run", seed, seconds)
        assert found == expected, f"trial {seed}"
        kills += killed
    assert kills >= count / 4


def test_killed_runs_end_bit_by_bit_like_others(
    killable: Killable, reference: tuple[Any, float], quick_path: Path
) -> None:
    check(killable, reference, quick_path, trials("KILLS", 6))


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_many_killed_runs_end_bit_by_bit_like_others(
    killable: Killable, reference: tuple[Any, float], quick_path: Path
) -> None:
    check(killable, reference, quick_path, trials("KILLS", 300))


@pytest.mark.parametrize("mutant", ["no_reseeding", "no_optimizer", "no_rewind"])
def test_a_worse_loop_is_caught(
    killable: Killable, reference: tuple[Any, float], quick_path: Path, mutant: str
) -> None:
    expected, seconds = reference
    outcomes = (
        killed_runs(killable, quick_path / "run", seed, seconds, mutant)[0] for seed in range(12)
    )
    assert any(outcome != expected for outcome in outcomes)
