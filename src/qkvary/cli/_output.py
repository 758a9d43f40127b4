"""Printing: a console for tables, one JSON document for programs.

Works without a terminal, in a narrow one, and in an ASCII locale.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

from rich.console import Console
from rich.text import Text

from qkvary.cli.main import never_fail_to_encode, print_error
from qkvary.reports.json_data import to_json
from qkvary.text.names import count, printable
from qkvary.text.units import duration

if TYPE_CHECKING:
    from qkvary.api.results import Result
    from qkvary.reports.report import ReportFormat

PAUSE_ON_TERMINAL, PAUSE_ELSEWHERE = 0.2, 30.0
"""Seconds between two lines of progress."""
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
    if "COLUMNS" in os.environ:
        # Anything but a positive number means what the terminal has.
        columns = shutil.get_terminal_size((width, 0)).columns
    else:
        columns = None if target.isatty() else width
    return _Console(file=target, width=columns, highlight=False, emoji=False, soft_wrap=False)


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document, the schema's version first; NaN and infinities become null."""
    never_fail_to_encode(sys.stdout)
    sys.stdout.write(to_json(document))


def print_line(screen: Console, text: str, style: str = "") -> None:
    """Print one text without control characters; the terminal breaks its lines."""
    screen.print(Text(printable(text), style=style), soft_wrap=True)


def say(sentence: str) -> None:
    """Print a sentence on standard error."""
    ProgressLine.clear_all()
    print_line(console(sys.stderr), sentence)


def warn(sentence: str) -> None:
    """Print a warning on standard error."""
    ProgressLine.clear_all()
    print_error(sentence)


def print_result(
    result: "Result[Any]",
    *,
    json_output: bool,
    full: bool,
    out: Path | None = None,
    formats: "Sequence[ReportFormat]" = (),
) -> int:
    """Print what a verb returned, write its report, and return the exit code.

    Args:
        result: The result.
        json_output: Print JSON.
        full: Print the whole report.
        out: The folder or file of the report; nothing is written if not given.
        formats: The formats to write; all by default.
    """
    files = [*result.files, *(result.save(out, formats or None) if out else ())]
    if json_output:
        document = dict(result.report.data)
        if files:
            document.setdefault("files", files)
        print_json(document)
    else:
        # Its colours take longer to import than many commands take.
        from qkvary.reports.terminal import print_report

        screen = console()
        print_report(result.report, screen, full=full)
        _print_files(files)
        for line in result.closing:
            print_line(screen, line)
    for notice in result.notices:
        print_error(notice)
    return result.exit_code


def _print_files(files: Sequence[Path]) -> None:
    screen = console()
    for path in files[:MOST_FILES]:
        print_line(screen, f"written: {path}")
    if len(files) > MOST_FILES:
        others = count(len(files) - MOST_FILES, "more file")
        print_line(screen, f"and {others} in {files[0].parent}")


@contextmanager
def show_progress(what: str, unit: str = "windows") -> Generator[Callable[..., None]]:
    """Show progress with the time left at the pace so far; elsewhere than in a terminal at times.

    Args:
        what: What is done.
        unit: What is counted.
    """
    started, line = time.monotonic(), ProgressLine(console(sys.stderr), time.monotonic())
    first: list[int] = []

    def update(done: int, total: int, note: str = "") -> None:
        # What a resumed job had done before it started took no time.
        first[:] = first or [done]
        steps = done - first[0]

        def describe() -> str:
            parts = [f"{what}: {done:,}{f' of {total:,}' if total else ''} {unit}", note]
            if steps > 0 and done < total:
                left = (time.monotonic() - started) * (total - done) / steps
                parts.append(f"{duration(left, 2)} left")
            return ", ".join(filter(None, parts))

        line.show(describe)

    try:
        yield update
    finally:
        line.clear()


class OrderedTexts:
    """Prints concurrent texts in order; the first unfinished one appears while it is generated."""

    def __init__(self, screen: Console, prompts: Sequence[str]) -> None:
        self._stream = screen.file
        self._waiting = list(prompts)
        self._ended = [False] * len(prompts)
        self._current = 0
        self(0, "", False)

    def __call__(self, number: int, text: str, ends: bool) -> None:
        """Add to a text, and print what is next in order."""
        self._waiting[number] += text
        self._ended[number] |= ends
        while self._current < len(self._waiting):
            self._print(self._waiting[self._current])
            self._waiting[self._current] = ""
            if not self._ended[self._current]:
                return
            self._current += 1
            self._print("\n" if self._current == len(self._waiting) else "\n\n")

    def _print(self, text: str) -> None:
        """Write a model's text without its control characters."""
        self._stream.write("\t".join(printable(part) for part in text.split("\t")))
        self._stream.flush()


class ProgressLine:
    """Progress on one updated line of a terminal; elsewhere a line from time to time."""

    _drawn_lines: ClassVar[set["ProgressLine"]] = set()

    def __init__(self, screen: Console, shown: float = 0.0) -> None:
        """Print to a console, the first time a while after ``shown``."""
        self.screen = screen
        self._pause = PAUSE_ON_TERMINAL if screen.is_terminal else PAUSE_ELSEWHERE
        self._shown = shown

    def show(self, describe: Callable[[], str]) -> None:
        """Print a text, unless the last one is too recent."""
        now = time.monotonic()
        if now - self._shown < self._pause:
            return
        self._shown = now
        if self.screen.is_terminal:
            self._drawn_lines.add(self)
            width = self.screen.width - 1
            self.screen.print(Text(describe().ljust(width)), end="\r", no_wrap=True)
        else:
            self.screen.print(Text(describe()), soft_wrap=True)

    def clear(self) -> None:
        """Clear the line."""
        if self in self._drawn_lines:
            self._drawn_lines.remove(self)
            self.screen.print(" " * (self.screen.width - 1), end="\r", no_wrap=True)

    @classmethod
    def clear_all(cls) -> None:
        """Clear the line that is drawn, if one is."""
        for line in list(cls._drawn_lines):
            line.clear()
