"""A training of so many minutes has the steps that take them, and resumes with these steps."""

import json
from pathlib import Path

import pytest

from qkvary.studies import timing
from tests.cli.tiny_training import command, tiny_places
from tests.conftest import Typed

places = pytest.fixture(autouse=True)(tiny_places)


@pytest.fixture(autouse=True)
def no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.cli.tiny_training.TINY", ["--batch-size", "4"])


def test_minutes_are_steps_by_the_time_of_a_layer(
    places: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "_time_layers", lambda *_: 1e-7)
    found = {}
    for minutes in ("1", "10"):
        (run,) = typed.json(*command(places, "--minutes", minutes, "--dry-run"))["runs"]
        found[minutes] = run["tokens"]
        assert 0.85 * 60 * float(minutes) < run["estimated_seconds"] <= 60 * float(minutes)
    # The test reads the same text in both.
    assert 9 < found["10"] / found["1"] < 14


def test_the_same_command_keeps_its_steps(
    places: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the machine does in the meantime."""
    runs = []
    for seconds, words in (
        (0.01, ()),
        (0.005, ("--keep", "1", "--threads", "1", "--allow-change")),
        (0.005, ("--threads", "2", "--allow-change")),
        (0.005, ("--seeds", "1", "--variant", "Q-K=V", "QKV")),
        (0.005, ("--learning-rate", "0.01")),
        (0.005, ("--variant", "MQA")),
    ):
        monkeypatch.setattr(
            timing,
            "estimate_language_seconds",
            lambda run, _scored, each=seconds: each * run.training.steps,
        )
        typed(*command(places, "--minutes", "0.001", *words))
        records = (places / "runs").glob("*/*/record.json")
        steps = [
            json.loads(path.read_text())["config"]["training"]["steps"]
            for path in sorted(records, key=lambda path: path.stat().st_mtime_ns)
        ]
        runs.append(steps)
    # A thousandth of a minute is 6 steps of 10 ms, or 12 of 5 ms.
    assert runs == [[6], [6], [6], [6, 6, 6], [6, 6, 6, 12], [6, 6, 6, 12, 6]]
