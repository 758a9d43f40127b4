"""An append-only log of events, one per line, in which each line is validated separately.

A line is a JSON object whose last key, ``check``, is a digest of the rest. Torn or changed lines
are reported and skipped.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from qkvary.storage.durable import AppendFile, atomic_write_file, quarantine
from qkvary.storage.jsonvalues import JsonValue, decode, encode
from qkvary.storage.manifest import FileEntry

JOURNAL_NAME = "metrics.jsonl"
"""The file of a run's journal inside the folder of the run."""
_CHECK = b',"check":"'
_DIGITS = 16


def to_line(event: Mapping[str, JsonValue]) -> bytes:
    """Return one event as a line, with its check and line feed."""
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
        raise ValueError(f"the line {'holds zeroed bytes' if zeroed else 'is torn or was changed'}")
    return cast("dict[str, Any]", decode(body))


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalContents:
    """The readable contents of a journal."""

    events: tuple[dict[str, Any], ...]
    """The events of all valid lines, in order."""
    problems: tuple[str, ...]
    gaps: tuple[int, ...]
    """For each invalid line, the number of valid events before it."""


def parse_journal(data: bytes, *, where: str) -> JournalContents:
    """Parse a journal; never fails."""
    events: list[dict[str, Any]] = []
    problems: list[str] = []
    gaps: list[int] = []
    *lines, rest = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            events.append(from_line(line))
        except ValueError as error:
            problems.append(f"{where}, line {number}: {error}")
            gaps.append(len(events))
    if rest:
        problem = "holds zeroed bytes" if b"\0" in rest else "has no end"
        problems.append(f"{where}, line {len(lines) + 1}: the line {problem}")
        gaps.append(len(events))
    return JournalContents(events=tuple(events), problems=tuple(problems), gaps=tuple(gaps))


class Journal:
    """A journal opened for appending."""

    def __init__(self, path: Path) -> None:
        """Open or create the journal at ``path``; remove a torn last line."""
        self.path = path
        data = path.read_bytes() if path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        self.torn_tail = data[len(whole) :]
        """Bytes after the last complete line."""
        if self.torn_tail:
            atomic_write_file(path, whole)
        self._start(whole)

    def _start(self, data: bytes) -> None:
        self._digest = hashlib.sha256(data)
        self._size = len(data)
        self._file = AppendFile(self.path)

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

    def starts_with(self, mark: FileEntry) -> bool:
        """Return whether the journal is unchanged up to ``mark``."""
        data = self.path.read_bytes()[: mark.size]
        return FileEntry.of(data) == mark

    def rewind(self, mark: FileEntry) -> None:
        """Truncate the journal to ``mark``, durably."""
        data = self.path.read_bytes()
        self._file.close()
        if len(data) != mark.size:
            atomic_write_file(self.path, data[: mark.size])
        self._start(data[: mark.size])

    def contents(self) -> JournalContents:
        """Return the contents at the time of opening; nothing may have been appended since."""
        return parse_journal(self.path.read_bytes() + self.torn_tail, where=str(self.path))

    def replace(self, events: Iterable[Mapping[str, JsonValue]]) -> None:
        """Replace all events, durably."""
        data = b"".join(map(to_line, events))
        self._file.close()
        atomic_write_file(self.path, data)
        self._start(data)

    def back_up(self) -> Path:
        """Copy the journal, as it was when opened, into a new folder; return the folder."""
        folder = quarantine(self.path.parent, ())
        atomic_write_file(folder / self.path.name, self.path.read_bytes() + self.torn_tail)
        return folder

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class SilentJournal:
    """A journal that writes nothing, for ranks other than 0."""

    def append(self, event: Mapping[str, JsonValue]) -> None:
        """Ignore the event."""

    def mark(self) -> FileEntry:
        """Return the mark of an empty journal."""
        return FileEntry.of(b"")

    def rewind(self, mark: FileEntry) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
