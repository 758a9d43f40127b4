"""Printing: a console for tables, one JSON document for programs.

Works without a terminal, in a narrow one, and in an ASCII locale.
"""

import math
import os
import shlex
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.text import Text

from qkvary.cli._streams import never_fail_to_encode
from qkvary.reports.json_data import to_json
from qkvary.text.names import count, printable

if TYPE_CHECKING:
    from qkvary.reports.report import Report

WIDTH_WITHOUT_TERMINAL = 160
MOST_FILES = 3
"""The number of files that are printed by name; further ones are counted."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave the error to the entry point."""
        raise BrokenPipeError


def console(stream: TextIO | None = None, *, width: int = WIDTH_WITHOUT_TERMINAL) -> Console:
    """Return a console on a stream, ``width`` columns wide without a terminal."""
    target = sys.stdout if stream is None else stream
    never_fail_to_encode(target)
    free = target.isatty() or "COLUMNS" in os.environ
    return _Console(
        file=target, width=None if free else width, highlight=False, emoji=False, soft_wrap=False
    )


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document, the schema's version first; NaN and infinities become null."""
    never_fail_to_encode(sys.stdout)
    sys.stdout.write(to_json(document))


def show(
    report: "Report", *, json_output: bool, files: Sequence[Path] = (), **more: object
) -> None:
    """Print a report, or its data as JSON, and the written files.

    Args:
        report: The report.
        json_output: Print JSON.
        files: The written files.
        more: Further keys of the JSON document.
    """
    if json_output:
        written: dict[str, object] = {"files": files} if files else {}
        print_json({**report.data, **more, **written})
        return
    # Some commands print no report.
    from qkvary.reports.terminal import print_report

    screen = console()
    print_report(report, screen)
    for path in files[:MOST_FILES]:
        screen.print(Text(printable(f"written: {path}")), soft_wrap=True)
    if len(files) > MOST_FILES:
        others = count(len(files) - MOST_FILES, "more file")
        screen.print(Text(printable(f"and {others} in {files[0].parent}")), soft_wrap=True)


@contextmanager
def show_progress(what: str, unit: str = "windows") -> Generator[Callable[[int, int], None]]:
    """Show progress in a terminal."""
    screen = console(sys.stderr)
    if not screen.is_terminal:
        yield lambda _done, _total: None
        return
    with screen.status(what) as status:
        yield lambda done, total: status.update(f"{what}: {done:,} of {total:,} {unit}")


def command_line(command: str, otherwise: str) -> str:
    """Return the command line of this process, or a text if another command started it."""
    words, own = sys.argv[1:], command.split()
    return shlex.join(["qkvary", *words]) if words[: len(own)] == own else otherwise


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Return a curve as one line of text, in ASCII if the stream requires it."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    marks = "▁▂▃▄▅▆▇█" if _can_encode(sys.stdout, "▁█") else "_.-=+*%#"
    low, high = min(finite), max(finite)
    stride = max(1, math.ceil(len(values) / width))
    points = [values[start] for start in range(0, len(values), stride)]
    scale = (len(marks) - 1) / (high - low) if high > low else 0.0
    return "".join(
        marks[round((value - low) * scale)] if math.isfinite(value) else "!" for value in points
    )


def _can_encode(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
