import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.storage.journal import Journal, from_line, parse_journal, to_line
from qkvary.storage.manifest import FileEntry
from tests.storage.test_jsonvalues import KEYS, VALUES, same

EVENTS = [
    {"event": "train", "step": step, "loss": 1.0 / (step + 3), "name": 'torn" ,"check":"\n'}
    for step in range(7)
]


def write(path: Path, events: list[dict[str, object]]) -> bytes:
    journal = Journal(path, b"")
    for event in events:
        journal.append(event)  # type: ignore[arg-type]
    journal.close()
    return path.read_bytes()


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=5))
def test_any_event_comes_back(event: dict[str, object]) -> None:
    line = to_line(event)  # type: ignore[arg-type]
    assert line.count(b"\n") == 1
    assert json.loads(line)["check"]
    assert same(from_line(line[:-1]), event)


def test_every_cut_leaves_the_lines_before_it(tmp_path: Path) -> None:
    """Cut the file after each byte: only the torn line is lost."""
    data = write(tmp_path / "metrics.jsonl", EVENTS)
    for cut in range(len(data) + 1):
        seen = parse_journal(data[:cut], where="log")
        assert list(seen.events) == EVENTS[: data[:cut].count(b"\n")]
        assert len(seen.problems) == (not data[:cut].endswith(b"\n") and cut > 0)


def test_a_torn_line_in_the_middle_is_reported_and_skipped() -> None:
    """Unlike Optuna's journal: a line torn in the middle of the file, with more after it."""
    lines = [to_line(event) for event in EVENTS]
    for cut in range(1, len(lines[3]) - 1):
        data = b"".join([*lines[:3], lines[3][:cut], b"\n", *lines[4:]])
        seen = parse_journal(data, where="log")
        assert list(seen.events) == EVENTS[:3] + EVENTS[4:]
        assert seen.problems == ("log, line 4: the line is incomplete or was changed",)


@pytest.mark.parametrize(
    ("start", "stop", "lost"),
    [((2, 5), (2, 40), {2}), ((2, 5), (4, 5), {2, 3, 4}), ((3, -2), (3, 3), {2, 3}),
     ((5, 5), (7, 0), {5, 6})],
)  # fmt: skip
def test_zeroed_bytes_are_distinguished_from_a_torn_line(
    start: tuple[int, int], stop: tuple[int, int], lost: set[int]
) -> None:
    """As after a disk error or power failure, in the middle of the log or at its end."""
    lines = [to_line(event) for event in EVENTS]
    first, last = (sum(map(len, lines[:line])) + offset for line, offset in (start, stop))
    data = bytearray(b"".join(lines))
    data[first:last] = bytes(last - first)
    seen = parse_journal(bytes(data), where="log")
    assert list(seen.events) == [e for number, e in enumerate(EVENTS) if number not in lost]
    assert seen.problems == (f"log, line {min(lost) + 1}: the line holds zeroed bytes",)


def test_every_changed_bit_is_noticed() -> None:
    line = to_line(EVENTS[1])[:-1]
    for position in range(len(line)):
        for bit in range(8):
            changed = bytearray(line)
            changed[position] ^= 1 << bit
            message = "holds zeroed bytes" if 0 in changed else "is incomplete or was changed"
            with pytest.raises(ValueError, match=f"^the line {message}$"):
                from_line(bytes(changed))


def test_a_journal_is_opened_with_the_given_lines_alone(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [to_line(event) for event in EVENTS]
    for found in (b"", b"".join(lines), b"".join(lines[:2]), lines[0][:-4]):
        path.write_bytes(found)
        journal = Journal(path, b"".join(lines[:2]))
        journal.append(EVENTS[2])
        assert journal.mark() == FileEntry.of(path.read_bytes())
        journal.close()
        assert path.read_bytes() == b"".join(lines[:3])
