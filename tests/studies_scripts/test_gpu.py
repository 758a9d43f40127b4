"""The script for a GPU runs everywhere at toy sizes, continues, and makes its page."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.parsed import ROOT

SCRIPTS = ROOT / "benchmarks" / "gpu"


def call(script: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run a script as a person does."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(SCRIPTS)))}
    command = [sys.executable, str(SCRIPTS / script), *words]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=280
    )


@pytest.mark.slow
def test_every_part_runs_here_and_is_not_repeated(tmp_path: Path) -> None:
    words = ("--device", "cpu", "--quick", "--out", str(tmp_path), "--workers", "1")
    ended = call("run.py", *words)
    assert ended.returncode == 0, ended.stderr
    lines = lines_of(tmp_path / "records.jsonl")
    parts = {line["name"]: line for line in lines if line["part"] == "part"}
    assert [*parts] == ["tests", "cuts", "decoding", "training", "ladder 1M", "pack"]
    assert {line["code"] for line in parts.values()} == {0}, parts
    measured = [line for line in lines if line["part"] in ("cuts", "decoding", "training")]
    assert {line["part"] for line in measured} == {"cuts", "decoding", "training"}
    assert all(line.get("tokens_per_second", 1) > 0 for line in measured)
    assert (tmp_path / "ladder.jsonl.xz").exists()
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"part": "decod')
    assert call("run.py", *words, "--part", "decoding").returncode == 0
    again = lines_of(tmp_path / "records.jsonl")
    assert [line for line in again if line["part"] in ("cuts", "decoding", "training")] == measured


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines that are whole."""
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            assert line == '{"part": "decod'
    return found
