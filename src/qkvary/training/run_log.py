"""Brings the log of a run back to the checkpoint from which the run goes on, damaged or not.

Sound weights are never given up for a log. Where the log is no longer what it was at the
checkpoint, its sound lines are kept, and an event ``cut`` behind them says between which steps
others are missing. Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qkvary.storage.journal import Journal, JournalContents
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.manifest import FileEntry

Gaps = list[list[int]]
"""Pairs of steps between which lines of a log are missing, in ascending order."""

_CUT = "cut"
_LOGGED_AGAIN = {"skipped", "diverged", "test"}
"""Events that come behind a checkpoint of the same step."""
_SHOWN = 3
"""How many gaps a sentence names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What a damaged log has lost."""

    gaps: Gaps
    """Where lines are missing."""
    message: str
    """What was damaged and what became of it; empty where an earlier call has said it."""


def bring_back(journal: Journal, mark: FileEntry, step: int) -> Cut | None:
    """Forget what was logged after a checkpoint; of a damaged log, keep the lines that are sound.

    The damaged log is copied aside. The event ``cut`` names the mark that the log no longer bears,
    so that a run that goes on from the same checkpoint once more finds its log in order.

    Args:
        journal: The log as it was found: nothing has been appended.
        mark: What the log was at the checkpoint.
        step: The step of the checkpoint.

    Returns:
        What is missing; None where the log still begins with what it was.

    Raises:
        ResourceError: if the log cannot be written.
    """
    if journal.holds(mark):
        journal.rewind(mark)
        return None
    contents = journal.contents()
    repaired = _repaired(contents, mark)
    if repaired:
        journal.replace(repaired)
        return Cut(gaps=repaired[-1]["gaps"], message="")
    kept = [e for e in contents.events if e["event"] == _CUT or _is_before(e, step)]
    earlier: list[Gaps] = [event["gaps"] for event in kept if event["event"] == _CUT]
    problems, gaps = _find_damage(contents, step)
    if not problems:
        problems, gaps = _find_loss(journal, mark, kept, step)
    gaps = join_gaps(gaps, *earlier)
    cut: dict[str, JsonValue] = {"event": _CUT, "step": step, "gaps": gaps, "mark": mark.sha256}
    copy = ""
    if contents.events or contents.problems:
        folder = journal.copy_aside()
        cut["copy"], copy = (
            folder.name,
            f", and a copy of what was found is in {folder.name} beside it",
        )
    journal.replace([*kept, cut])
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    said = f"the run goes on from its sound checkpoint, {describe_gaps(gaps)}{copy}"
    return Cut(gaps=gaps, message=f"{problems[0]}{more}; {said}")


def join_gaps(*some: Gaps) -> Gaps:
    """Return all gaps once, in ascending order."""
    return [list(gap) for gap in sorted({tuple(gap) for gaps in some for gap in gaps})]


def describe_gaps(gaps: Gaps) -> str:
    """Say what a log lacks; nothing of a log that is whole."""
    if not gaps:
        return ""
    spans = [f"{first:,} and {last:,}" for first, last in gaps[:_SHOWN]]
    more = f" (and in {len(gaps) - _SHOWN} more places)" if len(gaps) > _SHOWN else ""
    return f"its log lacks lines between steps {', '.join(spans)}{more}"


def _repaired(contents: JournalContents, mark: FileEntry) -> Sequence[dict[str, Any]]:
    """The events up to the cut that was made at this mark, if they are as they were then."""
    for number, event in reversed(list(enumerate(contents.events, start=1))):
        if event["event"] == _CUT and event.get("mark") == mark.sha256:
            is_sound = all(gap >= number for gap in contents.gaps)
            return contents.events[:number] if is_sound else ()
    return ()


def _is_before(event: dict[str, Any], step: int) -> bool:
    """Whether an event stands before the checkpoint of a step."""
    is_again = event["event"] in _LOGGED_AGAIN
    return event["step"] < step or (event["step"] == step and not is_again)


def _find_damage(contents: JournalContents, step: int) -> tuple[list[str], Gaps]:
    """The lines that are damaged and may have stood before a checkpoint."""
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
    """What is wrong with a log that has sound lines only, and yet not those that it had."""
    size = journal.mark().size
    if size < mark.size:
        last = kept[-1]["step"] if kept else 0
        return [f"{journal.path} ends {mark.size - size:,} bytes early"], [[last, step]]
    return [f"{journal.path} has other lines than it had"], [[0, step]]
