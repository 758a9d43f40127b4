"""Opens the log of a run at the checkpoint from which the run resumes. Torch-free.

A damaged log never prevents resuming from a valid checkpoint. Its valid lines are kept, and an
event ``cut`` after them records that lines are missing.
"""

from pathlib import Path

from qkvary.storage.durable import atomic_write_file, quarantine
from qkvary.storage.journal import Journal, parse_journal, to_line
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.manifest import FileEntry

CUT_EVENT = "cut"
"""Name of the event that marks a place where lines of the log are missing."""
_AFTER_CHECKPOINT = {"skipped", "diverged", "test", CUT_EVENT}
"""Names of events that are logged after the checkpoint of the same step."""


def open_log(path: Path, mark: FileEntry, step: int) -> tuple[Journal, str]:
    """Open a log and remove the lines that were written after a checkpoint.

    Returns the log and a description of any damage.

    ``mark`` is the size and digest that the log had at the checkpoint. If the log does
    not match, all of it is copied to another folder, and the log keeps only the valid lines up to
    the checkpoint.
    """
    data = path.read_bytes() if path.exists() else b""
    lines = data[: mark.size]
    if FileEntry.of(lines) == mark:
        return Journal(path, lines), ""
    contents = parse_journal(data, where=str(path))
    cut: dict[str, JsonValue] = {"event": CUT_EVENT, "step": step}
    problem, *more = contents.problems or [f"{path} does not match the checkpoint"]
    others = f" (and {len(more)} more)" if more else ""
    message = f"{problem}{others}; the run resumes with the valid lines"
    if data:
        folder = quarantine(path.parent, ())
        atomic_write_file(folder / path.name, data)
        cut["copy"] = folder.name
        message += f", and the damaged log was copied to {folder.name}"
    kept = [
        event
        for event in contents.events
        if event["step"] < step
        or (event["step"] == step and event["event"] not in _AFTER_CHECKPOINT)
    ]
    return Journal(path, b"".join(map(to_line, [*kept, cut]))), message
