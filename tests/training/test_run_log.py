"""A damaged log: valid lines are kept, missing ones are reported, once."""

import random
from pathlib import Path
from typing import Any

import pytest

from qkvary.storage.journal import Journal, parse_journal
from qkvary.storage.manifest import FileEntry
from qkvary.training.run_log import LogDamage, restore_log
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
    path.unlink(missing_ok=True)
    journal = Journal(path)
    for event in BEFORE:
        journal.append(event)
    mark = journal.mark()
    for event in AFTER:
        journal.append(event)
    journal.close()
    return mark


def resume(path: Path, mark: FileEntry, step: int = STEP) -> LogDamage | None:
    """Resume a run that is killed again before its next checkpoint."""
    journal = Journal(path)
    cut = restore_log(journal, mark, step)
    journal.append({"event": "resumed", "step": step})
    journal.append({"event": "train", "step": step + 4, "loss": 0.1, "seconds": 0.1})
    journal.close()
    return cut


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


def test_a_valid_log_is_rewound(path: Path) -> None:
    mark = write(path)
    for _ in range(2):
        assert resume(path, mark) is None
        assert events(path) == BEFORE


@pytest.mark.parametrize(("line", "gap"), [(0, [0, 8]), (1, [4, 12]), (5, [16, 20]), (6, [20, 20])])
def test_a_changed_line_is_left_out_and_named(path: Path, line: int, gap: list[int]) -> None:
    mark = write(path)
    change_digit(path, line)
    found = path.read_bytes()
    cut = resume(path, mark)
    assert cut
    assert cut.gaps == [gap]
    assert cut.message.startswith(f"{path}, line {line + 1}: the line is torn or was changed; ")
    assert f"its log lacks lines between steps {gap[0]} and {gap[1]}, " in cut.message
    assert (path.parent / "damaged-1" / "metrics.jsonl").read_bytes() == found
    *kept, mine = events(path)
    assert kept == BEFORE[:line] + BEFORE[line + 1 :]
    shared = {"event": "cut", "step": 20, "gaps": [gap]}
    assert mine == {**shared, "mark": mark.sha256, "copy": "damaged-1"}
    # Killed before its next checkpoint, it goes on from the same one, whose mark is the old one.
    again = resume(path, mark)
    assert again == LogDamage(gaps=[gap], message="")
    assert events(path) == [*kept, mine]
    assert len(list(path.parent.iterdir())) == 2


def test_a_second_damage_is_added_to_the_first(path: Path) -> None:
    mark = write(path)
    change_digit(path, 0)
    resume(path, mark)
    change_digit(path, 2)
    cut = resume(path, mark)
    assert cut
    assert cut.gaps == [[0, 8], [12, 16]]
    assert "damaged-2" in cut.message
    assert "between steps 0 and 8, 12 and 16" in cut.message
    kept = [event for event in events(path) if event["event"] != "cut"]
    assert kept == [*BEFORE[1:3], *BEFORE[4:], {"event": "resumed", "step": 20}]


def test_damage_is_reported_and_costs_no_valid_line(path: Path) -> None:
    for seed in range(trials("DAMAGES", 70)):
        generator = random.Random(seed)
        mark = write(path)
        before = path.read_bytes()[: mark.size]
        damage = DAMAGES[seed % len(DAMAGES)]
        damage(path, generator)
        damaged = path.read_bytes() if path.exists() else b""
        cut = resume(path, mark)
        if damaged.startswith(before):
            assert cut is None, f"{damage.__name__}, seed {seed}"
            assert events(path) == BEFORE
            continue
        assert cut, f"{damage.__name__}, seed {seed}"
        kept = [event for event in events(path) if event["event"] != "cut"]
        assert kept == [event for event in BEFORE if event in kept]
        lost = [event["step"] for event in BEFORE if event not in kept]
        covered = [any(first <= step <= last for first, last in cut.gaps) for step in lost]
        assert all(covered), f"{damage.__name__}, seed {seed}"
        assert resume(path, mark) == LogDamage(gaps=cut.gaps, message="")
