"""Standard streams: characters that they cannot encode, and one line for errors.

Imports neither rich nor a report, so that the help and errors of the command line come at once.
"""

import codecs
import io
import os
import sys
from typing import TextIO

from qkvary.text.names import printable

NEAR = dict(
    zip("–—−×·±ᵀτ∞’", ("-", "-", "-", "x", ".", "+-", "^T", "tau", "inf", "'"), strict=True)
)
"""The replacements of characters in an ASCII stream."""
LONGEST_MESSAGE = 2000
"""The most characters of an error that are printed: a message may quote a value of a file."""

TYPED: list[str] = []
"""The words after ``qkvary`` of the command that runs."""


def is_first_process() -> bool:
    """Return whether this is the only process, or the first that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def print_error(message: str) -> None:
    """Print one error on standard error: what failed and what to do, without control characters."""
    stream = sys.stderr
    if stream is None or stream.closed:
        return
    never_fail_to_encode(stream)
    lines = [" ".join(line.split()) for line in message.splitlines() if line.strip()]
    text = "\n".join(lines) or "failed without a message"
    text = text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 3] + "..."
    try:
        stream.write("qkvary: " + printable(text) + "\n")
        stream.flush()
    except OSError:
        # Standard error is closed; the exit code remains.
        return


def never_fail_to_encode(stream: TextIO) -> None:
    """Let a stream replace characters that it cannot encode: a hyphen for a dash."""
    if isinstance(stream, io.TextIOWrapper):
        codecs.register_error("qkvary", _replace)
        stream.reconfigure(errors="qkvary")


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    near = (
        NEAR.get(letter) or letter.encode("ascii", "backslashreplace").decode()
        for letter in letters
    )
    return "".join(near), error.end
