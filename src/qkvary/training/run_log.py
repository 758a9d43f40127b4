"""Restores the log of a run to the checkpoint from which the run resumes. Torch-free.

A damaged log never prevents resuming from a valid checkpoint. Its valid lines are kept, and an
event ``cut`` after them records between which steps lines are missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qkvary.storage.journal import Journal, JournalContents
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.manifest import FileEntry

Gaps = list[list[int]]
"""Pairs of steps between which lines of a log are missing, in ascending order."""

_CUT_EVENT = "cut"
_AFTER_CHECKPOINT = {"skipped", "diverged", "test"}
"""Events that come after a checkpoint of the same step."""
_MAX_SHOWN = 3
"""Maximum number of gaps in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDamage:
    """The lines that a damaged log lacks."""

    gaps: Gaps
    message: str
    """Description of damage and repair; empty if an earlier call has reported it."""


def restore_log(journal: Journal, mark: FileEntry, step: int) -> LogDamage | None:
    """Remove the lines after a checkpoint, and damaged ones; return the damage, if there is any.

    A damaged log is backed up first. The event ``cut`` stores the mark that the log no longer
    matches, so that resuming from the same checkpoint again finds the log repaired.
    """
    if journal.starts_with(mark):
        journal.rewind(mark)
        return None
    contents = journal.contents()
    repaired = _earlier_repair(contents, mark)
    if repaired:
        journal.replace(repaired)
        return LogDamage(gaps=repaired[-1]["gaps"], message="")
    kept = [
        event
        for event in contents.events
        if event["event"] == _CUT_EVENT
        or event["step"] < step
        or (event["step"] == step and event["event"] not in _AFTER_CHECKPOINT)
    ]
    known: list[Gaps] = [event["gaps"] for event in kept if event["event"] == _CUT_EVENT]
    problems, gaps = _find_damage(contents, step)
    if not problems:
        problems, gaps = _find_loss(journal, mark, kept, step)
    gaps = merge_gaps(gaps, *known)
    cut: dict[str, JsonValue] = {
        "event": _CUT_EVENT,
        "step": step,
        "gaps": gaps,
        "mark": mark.sha256,
    }
    copy = ""
    if contents.events or contents.problems:
        cut["copy"] = journal.back_up().name
        copy = f", and the damaged log was copied to {cut['copy']}"
    journal.replace([*kept, cut])
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    remedy = f"the run resumes from a valid checkpoint, {describe_gaps(gaps)}{copy}"
    return LogDamage(gaps=gaps, message=f"{problems[0]}{more}; {remedy}")


def merge_gaps(*some: Gaps) -> Gaps:
    """Return the distinct gaps in ascending order."""
    return [list(gap) for gap in sorted({tuple(gap) for gaps in some for gap in gaps})]


def describe_gaps(gaps: Gaps) -> str:
    """Describe the gaps of a log; empty if there are none."""
    if not gaps:
        return ""
    spans = [f"{first:,} and {last:,}" for first, last in gaps[:_MAX_SHOWN]]
    more = f" (and in {len(gaps) - _MAX_SHOWN} more places)" if len(gaps) > _MAX_SHOWN else ""
    return f"its log lacks lines between steps {', '.join(spans)}{more}"


def _earlier_repair(contents: JournalContents, mark: FileEntry) -> Sequence[dict[str, Any]]:
    """Return the events up to the last repair at this mark, if they are still intact."""
    for number, event in reversed(list(enumerate(contents.events, start=1))):
        if event["event"] == _CUT_EVENT and event.get("mark") == mark.sha256:
            is_sound = all(gap >= number for gap in contents.gaps)
            return contents.events[:number] if is_sound else ()
    return ()


def _find_damage(contents: JournalContents, step: int) -> tuple[list[str], Gaps]:
    """Find the damaged lines that may have been logged before a checkpoint."""
    steps = [0, *(event["step"] for event in contents.events), step]
    found = [
        (problem, [steps[gap], min(steps[gap + 1], step)])
        for problem, gap in zip(contents.problems, contents.gaps, strict=True)
        if steps[gap] <= step
    ]
    return [problem for problem, _ in found], [gap for _, gap in found]


def _find_loss(
    journal: Journal, mark: FileEntry, kept: Sequence[dict[str, Any]], step: int
) -> tuple[list[str], Gaps]:
    """Describe a log whose lines are all valid but differ from the checkpoint's log."""
    size = journal.mark().size
    if size < mark.size:
        last = kept[-1]["step"] if kept else 0
        return [f"{journal.path} is {mark.size - size:,} bytes too short"], [[last, step]]
    return [f"{journal.path} has other lines than at the checkpoint"], [[0, step]]
