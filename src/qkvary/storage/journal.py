"""An append-only log of events, one per line. Each line is validated separately.

A line is a JSON object whose last key, ``check``, is a digest of the rest. Incomplete or
changed lines are reported and skipped.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from qkvary.storage.durable import AppendFile, atomic_write_file
from qkvary.storage.jsonvalues import JsonValue, decode, encode
from qkvary.storage.manifest import FileEntry

JOURNAL_NAME = "metrics.jsonl"
"""The file of a run's journal inside the folder of the run."""
_CHECK = b',"check":"'
_DIGITS = 16


def to_line(event: Mapping[str, JsonValue]) -> bytes:
    """Return one event as a line of JSON, with the digest in ``check`` and the final line feed."""
    if not event:
        raise ValueError("an event needs at least one field, got none")
    body = encode(event).encode()
    check = hashlib.sha256(body).hexdigest()[:_DIGITS].encode()
    return body[:-1] + _CHECK + check + b'"}\n'


def from_line(line: bytes) -> dict[str, Any]:
    """Return the event of one line (without its line feed)."""
    head, _, tail = line.rpartition(_CHECK)
    body = head + b"}"
    if tail != hashlib.sha256(body).hexdigest()[:_DIGITS].encode() + b'"}':
        # Zero bytes come from the disk or file system, not from a crashed writer or an editor.
        zeroed = b"\0" in line
        raise ValueError(
            f"the line {'holds zeroed bytes' if zeroed else 'is incomplete or was changed'}"
        )
    return cast("dict[str, Any]", decode(body))


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalContents:
    """The events of the valid lines of a journal, and the problems of the other lines."""

    events: tuple[dict[str, Any], ...]
    """The events of all valid lines, in order."""
    problems: tuple[str, ...]
    """One sentence for each invalid line."""


def parse_journal(data: bytes, *, where: str) -> JournalContents:
    """Return the contents of a journal. Invalid lines raise no error: they are listed."""
    events: list[dict[str, Any]] = []
    problems: list[str] = []
    *lines, rest = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            events.append(from_line(line))
        except ValueError as error:
            problems.append(f"{where}, line {number}: {error}")
    if rest:
        problem = "holds zeroed bytes" if b"\0" in rest else "has no end"
        problems.append(f"{where}, line {len(lines) + 1}: the line {problem}")
    return JournalContents(events=tuple(events), problems=tuple(problems))


class Journal:
    """A journal opened for appending."""

    def __init__(self, path: Path, lines: bytes) -> None:
        """Open the journal at ``path`` with exactly these lines; all other lines are removed."""
        if lines != (path.read_bytes() if path.exists() else b""):
            atomic_write_file(path, lines)
        self._digest = hashlib.sha256(lines)
        self._size = len(lines)
        self._file = AppendFile(path)

    def append(self, event: Mapping[str, JsonValue]) -> None:
        """Append an event."""
        line = to_line(event)
        self._file.append(line)
        self._digest.update(line)
        self._size += len(line)

    def mark(self) -> FileEntry:
        """Flush to the disk and return the current size and digest."""
        self._file.sync()
        return FileEntry(size=self._size, sha256=self._digest.hexdigest())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class SilentJournal:
    """A journal that writes nothing, for ranks other than 0."""

    def append(self, event: Mapping[str, JsonValue]) -> None:
        """Ignore the event."""

    def mark(self) -> FileEntry:
        """Return the size and digest of an empty journal."""
        return FileEntry.of(b"")

    def close(self) -> None:
        """Do nothing, since no file is open."""
