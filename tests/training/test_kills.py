"""A run that is killed any number of times ends, bit by bit, as one that was not."""

import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qkvary.storage.durable import TEMPORARY_PREFIX
from qkvary.storage.journal import parse_journal
from tests.forked import ForkedPython
from tests.storage.damage import trials
from tests.storage.quick_disk import quick_folder

ROOT = Path(__file__).resolve().parents[2]
STEPS = {"toy": 30, "language": 12}
"""Of a classifier, and of a language model whose gradients are added up over four parts."""
quick_path = pytest.fixture(quick_folder)
quick_module_path = pytest.fixture(quick_folder, scope="module")


class Killable:
    """Runs in processes that can be killed."""

    def __init__(self) -> None:
        self.process = ForkedPython(
            [sys.executable, "-m", "tests.training.killable"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        )

    def start(
        self,
        directory: Path,
        *,
        kind: str,
        seconds: float,
        keep: int = 2,
    ) -> int:
        order = {
            "directory": str(directory),
            "kind": kind,
            "steps": STEPS[kind],
            "checkpoint_seconds": seconds,
            "keep": keep,
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


@dataclass(frozen=True)
class Reference:
    """The result without a kill, and its duration with a checkpoint at every step."""

    kind: str
    result: Any
    seconds: float


@pytest.fixture(scope="module")
def references(killable: Killable, quick_module_path: Path) -> Callable[[str], Reference]:
    return functools.cache(lambda kind: make_reference(killable, quick_module_path, kind))


def make_reference(killable: Killable, quick_module_path: Path, kind: str) -> Reference:
    directory, dense = (quick_module_path / f"{kind}-{name}" for name in ("whole", "dense"))
    for path in (directory, dense):
        path.mkdir()
    assert killable.run(directory, kill_after=None, kind=kind, seconds=1e9) == 0
    start = time.monotonic()
    assert killable.run(dense, kill_after=None, kind=kind, seconds=0.0) == 0
    seconds = time.monotonic() - start
    assert result(dense) == result(directory)
    return Reference(kind, result(directory), seconds)


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
    killable: Killable, directory: Path, seed: int, usual: Reference
) -> tuple[Any, int]:
    """Kill a run one to five times at random, then let it end."""
    generator = random.Random(seed)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    kills = 0
    options: dict[str, Any] = {"kind": usual.kind}
    options["seconds"] = generator.choice([0.0, 0.0, 0.02])
    for _ in range(generator.randint(1, 5)):
        options["keep"] = generator.choice([1, 2, 5])
        code = killable.run(directory, kill_after=generator.uniform(0, usual.seconds), **options)
        assert code in (0, -9)
        kills += code == -9
    assert killable.run(directory, kill_after=None, **options) == 0
    left = [path.name for path in directory.rglob("*") if path.name.startswith(TEMPORARY_PREFIX)]
    assert left == []
    return result(directory), kills


def check(killable: Killable, reference: Reference, quick_path: Path, count: int) -> None:
    kills = 0
    for seed in range(count):
        found, killed = killed_runs(killable, quick_path / "run", seed, reference)
        assert found == reference.result, f"trial {seed}"
        kills += killed
    assert kills >= count / 4


@pytest.mark.parametrize("kind", STEPS)
def test_killed_runs_end_bit_by_bit_like_others(
    killable: Killable, references: Callable[[str], Reference], quick_path: Path, kind: str
) -> None:
    check(killable, references(kind), quick_path, trials("KILLS", 2))
