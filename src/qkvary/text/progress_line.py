"""A progress line on standard error.

On a terminal the line is updated in place; otherwise a new line is printed occasionally.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, TextIO

from qkvary.text.names import printable

PAUSE_ON_TERMINAL, PAUSE_ELSEWHERE = 0.2, 30.0
"""Minimum seconds between two progress lines, on a terminal and elsewhere."""
USUAL_WIDTH = 80

Progress = Callable[..., None]
"""Updates a progress display. The arguments are the finished units, their total, and a note."""
Display = AbstractContextManager[Progress]
"""An open progress display."""
ShowProgress = Callable[..., Display]
"""Opens a progress display. The arguments are the name of the work and the name of its unit."""


def ignore(*_values: object) -> None:
    """Do nothing: the default callback."""


def no_progress(_what: str, _unit: str = "windows") -> Display:
    """Return a progress display that shows nothing."""
    return nullcontext(ignore)


class ProgressLine:
    """Shows progress in one line that is updated. Outside a terminal, prints occasional lines."""

    _drawn_lines: ClassVar[set["ProgressLine"]] = set()

    def __init__(self, shown: float = float("-inf")) -> None:
        """Create a progress line on standard error.

        ``shown`` is a time of ``time.monotonic``. The first line is printed at least 0.2 seconds
        (on a terminal) or 30 seconds (elsewhere) after it, and by default at once.
        """
        self._stream = sys.stderr
        self._is_terminal = self._stream.isatty()
        self._pause = PAUSE_ON_TERMINAL if self._is_terminal else PAUSE_ELSEWHERE
        self._shown = shown
        self._text = ""

    def show(self, describe: Callable[[], str]) -> None:
        """Print the text from ``describe``.

        Nothing is printed if the text is shown already or if the previous update was too recent.
        """
        now = time.monotonic()
        if now - self._shown < self._pause:
            return
        text = printable(describe())
        if text == self._text:
            return
        self._shown, self._text = now, text
        if self._is_terminal:
            self._drawn_lines.add(self)
            self._draw(text)
        else:
            _write(self._stream, f"{text}\n")

    def clear(self) -> None:
        """Clear the line."""
        if self in self._drawn_lines:
            self._drawn_lines.remove(self)
            self._text = ""
            self._draw("")

    @classmethod
    def clear_all(cls) -> None:
        """Clear every progress line that is drawn."""
        for line in list(cls._drawn_lines):
            line.clear()

    def _draw(self, text: str) -> None:
        """Print a new text over the line, and move the cursor to its start."""
        try:
            width = os.get_terminal_size(self._stream.fileno()).columns or USUAL_WIDTH
        except (OSError, ValueError):
            width = USUAL_WIDTH
        _write(self._stream, f"{text[: width - 1].ljust(width - 1)}\r")


def say(sentence: str) -> None:
    """Print a sentence on standard error, after clearing any progress line there."""
    ProgressLine.clear_all()
    _write(sys.stderr, f"{printable(sentence)}\n")


def discard(descriptor: int) -> None:
    """Discard all further output of a file descriptor."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def _write(stream: TextIO, text: str) -> None:
    """Print a text; if the reader of a pipe has gone, act as if a terminal had hung up."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        discard(stream.fileno())
        signal.raise_signal(signal.SIGHUP)
