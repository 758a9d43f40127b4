"""A damaged log: valid lines are kept, and that lines are missing is reported."""

import random
from pathlib import Path
from typing import Any

import pytest

from qkvary.storage.journal import Journal, parse_journal
from qkvary.storage.manifest import FileEntry
from qkvary.training.run_log import open_log
from tests.storage.damage import DAMAGES, trials

STEP = 20
BEFORE = [
    *({"event": "train", "step": step, "loss": 1.0 / step, "seconds": 0.1} for step in (4, 8, 12)),
    {"event": "skipped", "step": 13, "loss": 9.0},
    *({"event": "train", "step": step, "loss": 1.0 / step, "seconds": 0.1} for step in (16, 20)),
    {"event": "validation", "step": 20, "loss": 0.5},
]
"""What stands in the log at the checkpoint of step 20."""
AFTER = [
    {"event": "skipped", "step": 20, "loss": 9.0},
    {"event": "train", "step": 24, "loss": 0.1, "seconds": 0.1},
]


@pytest.fixture(name="path")
def log(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def write(path: Path) -> FileEntry:
    """Write the log of a run that was killed after its checkpoint; return its mark there."""
    journal = Journal(path, b"")
    for event in BEFORE:
        journal.append(event)
    mark = journal.mark()
    for event in AFTER:
        journal.append(event)
    journal.close()
    return mark


def resume(path: Path, mark: FileEntry, step: int = STEP) -> str:
    """Resume a run that is killed again before its next checkpoint; return the damage."""
    journal, damage = open_log(path, mark, step)
    journal.append({"event": "resumed", "step": step})
    journal.append({"event": "train", "step": step + 4, "loss": 0.1, "seconds": 0.1})
    assert journal.mark() == FileEntry.of(path.read_bytes())
    journal.close()
    return damage


def events(path: Path) -> list[dict[str, Any]]:
    """The events of a valid log up to the checkpoint."""
    contents = parse_journal(path.read_bytes(), where="log")
    assert contents.problems == ()
    *found, resumed, train = contents.events
    assert (resumed["event"], train["event"]) == ("resumed", "train")
    return found


def change_digit(path: Path, line: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b'"loss":', b'"loss":1')
    path.write_bytes(b"".join(lines))


def kept(path: Path) -> list[dict[str, Any]]:
    """The events of the run before the checkpoint."""
    return [event for event in events(path) if event["event"] not in ("cut", "resumed")]


def test_a_valid_log_is_rewound(path: Path) -> None:
    mark = write(path)
    for _ in range(2):
        assert resume(path, mark) == ""
        assert events(path) == BEFORE


@pytest.mark.parametrize("line", [0, 1, 5, 6])
def test_a_changed_line_is_left_out_and_named(path: Path, line: int) -> None:
    mark = write(path)
    change_digit(path, line)
    found = path.read_bytes()
    damage = resume(path, mark)
    assert damage.startswith(f"{path}, line {line + 1}: the line is incomplete or was changed; ")
    assert (path.parent / "damaged-1" / "metrics.jsonl").read_bytes() == found
    cut = {"event": "cut", "step": 20, "copy": "damaged-1"}
    assert events(path) == [*BEFORE[:line], *BEFORE[line + 1 :], cut]


def test_a_run_is_killed_before_the_checkpoint_after_the_damage(path: Path) -> None:
    """It resumes from the same checkpoint, whose mark does not match the repaired log."""
    mark = write(path)
    change_digit(path, 0)
    resume(path, mark)
    assert resume(path, mark).startswith(f"{path} does not match the checkpoint; ")
    assert kept(path) == BEFORE[1:]
    change_digit(path, 2)
    assert "damaged-3" in resume(path, mark)
    assert kept(path) == [*BEFORE[1:3], *BEFORE[4:]]
    assert [event["event"] for event in events(path)].count("cut") == 1


def test_an_earlier_damage_stays_in_the_log(path: Path) -> None:
    mark = write(path)
    change_digit(path, 0)
    resume(path, mark)
    journal = Journal(path, path.read_bytes())
    later = journal.mark()
    journal.close()
    assert resume(path, later, STEP + 4) == ""
    assert {"event": "cut", "step": STEP, "copy": "damaged-1"} in events(path)


def test_damage_is_reported_and_costs_no_valid_line(path: Path) -> None:
    for seed in range(trials("DAMAGES", 70)):
        generator = random.Random(seed)
        mark = write(path)
        before = path.read_bytes()[: mark.size]
        damage = DAMAGES[seed % len(DAMAGES)]
        damage(path, generator)
        damaged = path.read_bytes() if path.exists() else b""
        message = resume(path, mark)
        if damaged.startswith(before):
            assert message == "", f"{damage.__name__}, seed {seed}"
            assert events(path) == BEFORE
            continue
        assert message, f"{damage.__name__}, seed {seed}"
        valid = parse_journal(damaged, where="").events
        assert kept(path) == [event for event in BEFORE if event in valid]
        resume(path, mark)
        assert kept(path) == [event for event in BEFORE if event in valid]
