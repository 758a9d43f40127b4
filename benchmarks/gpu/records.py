"""The file of records that all parts append to: one JSON line per case, which resuming skips."""

import json
import os
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from qkvary.storage.environment import now

Line = dict[str, Any]
NAME = "records.jsonl"


class Records:
    """Lines on disk. A torn last line, left by a killed process, is ignored and completed."""

    def __init__(self, folder: Path) -> None:
        """Read what is there.

        Args:
            folder: The folder of the file; it is created.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / NAME
        self.lines = read_lines(self.path) if self.path.exists() else []

    def has(self, part: str, **names: Hashable) -> bool:
        """Return whether a case was measured or refused before."""
        wanted = {"part": part, **names}
        return any(wanted.items() <= line.items() for line in self.lines)

    def add(self, part: str, **values: Any) -> None:
        """Append a line and print it."""
        line = {"part": part, **values, "at": now()}
        self.lines.append(line)
        text = json.dumps(line)
        print(text, flush=True)
        before = self.path.read_bytes() if self.path.exists() else b""
        is_torn = bool(before) and not before.endswith(b"\n")
        with self.path.open("a") as file:
            file.write("\n" * is_torn + text + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_lines(path: Path) -> list[Line]:
    """Return the whole lines of a file."""
    found: list[Line] = []
    for text in path.read_text("utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            found.append(line)
    return found
