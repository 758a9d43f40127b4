"""Every benchmark runs with ``--quick`` and prints a JSON line per case; nothing is timed here."""

import json
import math
from pathlib import Path

import pytest

from tests.conftest import Runner

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))
KEYS = {
    "benchmark",
    "case",
    "ratio",
    "goal",
    "better",
    "met",
    "interval",
    "rounds",
    "medians_seconds",
    "versions",
}


def test_there_are_benchmarks() -> None:
    assert {"plus_core", "training_step", "study_overhead", "command_line"} <= {
        path.stem for path in BENCHMARKS
    }


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_quick_prints_one_json_line_per_case(path: Path, run_python: Runner) -> None:
    result = run_python([str(path), "--quick"])
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines
    assert len({line["case"] for line in lines}) == len(lines)
    for line in lines:
        assert line.keys() >= KEYS
        assert line["benchmark"] == path.stem
        assert line["better"] in {"higher", "lower"}
        low, high = line["interval"]
        assert 0 < low <= line["ratio"] <= high < math.inf
        assert all(seconds > 0 for seconds in line["medians_seconds"].values())
        assert {"python", "torch"} <= line["versions"].keys()
