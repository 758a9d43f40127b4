"""Every benchmark runs with ``--quick`` and prints a JSON line per case; nothing is timed here."""

import json
import math
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contracts.parsed import ROOT

BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))
SLOW = (
    *("command_line", "data_preparation", "decode_attention", "language_training"),
    *("linear_attention", "tiny_imagenet", "training_step", "translation", "whole_decoding"),
)
"""They start many processes, or read a whole corpus."""
MARKS = {**dict.fromkeys(SLOW, pytest.mark.slow), "cluster_overhead": pytest.mark.cluster}
KEYS = {
    *("benchmark", "case", "versions", "ratio", "interval", "rounds", "medians_seconds"),
    *("goal", "better", "met"),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that is set up, with benchmarks of its own."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    # A link would leave the environment of this Python.
    python = tmp_path / ".venv/bin/python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    for name in (".train", ".setup"):
        (tmp_path / ".venv" / name).touch()
    timing = tmp_path / "benchmarks/timing"
    timing.mkdir(parents=True)
    for name in ("every.py", "cases.py"):
        shutil.copy(ROOT / "benchmarks/timing" / name, timing)
    return tmp_path


CASE = """
import json, sys
case = {"case": "ours over theirs", "ratio": 0.5, "interval": [0.4, 0.6], "goal": 1.0}
print(json.dumps(case | {"better": "lower", "met": True, "rounds": len(sys.argv)}))
"""
ROW = "| ours over theirs | 0.500 \\[0.400, 0.600\\] | at most 1 | 2 | yes |"


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("import nothing_of_this_name", 0, "a.py is left out: ModuleNotFoundError: "),
        ("raise ValueError('ray is not installed: run pip')", 0, "a.py is left out: ValueError: "),
        ("raise ValueError('too slow')", 2, "Traceback "),
        ("import sys; print('a warning', file=sys.stderr)", 0, "a warning\n"),
    ],
)
def test_make_bench_ends_with_a_table_and_leaves_out_what_is_not_installed(
    project: Path, source: str, code: int, said: str
) -> None:
    (project / "benchmarks/a.py").write_text(source)
    (project / "benchmarks/b.py").write_text(CASE)
    made = subprocess.run(
        ["make", "--no-print-directory", "bench", "BENCH_ARGS=--quick"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert made.returncode == code
    assert said in made.stderr
    assert ("Traceback" in made.stderr) == (code != 0)
    # The next one runs, whatever became of the first.
    assert made.stdout.splitlines()[-1] == ROW


@pytest.mark.parametrize("given", [None, sys.executable, "/nowhere/python"])
def test_published_model_leaves_out_llama_cpp_in_one_line(
    given: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next(one for one in BENCHMARKS if one.stem == "published_model")
    monkeypatch.syspath_prepend(path.parent)
    find = runpy.run_path(str(path))["find_llama_cpp"]
    assert find(None if given is None else Path(given)) is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("published_model: llama.cpp is left out: ")
    assert (given or "--llama-python") in line


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_what_a_benchmark_imports_is_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(path.parent)
    assert callable(runpy.run_path(str(path))["main"])


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=MARKS.get(path.stem, ())) for path in BENCHMARKS],
    ids=lambda path: path.stem,
)
def test_quick_prints_one_json_line_per_case(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.setattr(sys, "argv", [str(path), "--quick"])
    runpy.run_path(str(path), run_name="__main__")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
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
