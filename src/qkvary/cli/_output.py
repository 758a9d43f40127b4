"""How commands print: one console for tables, one JSON document for machines, one line for errors.

Works without a terminal, in a narrow one, and where the locale knows ASCII only.
"""

import codecs
import dataclasses
import io
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO, cast

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from qkvary.text.numbers import MISSING

SCHEMA_VERSION = 1
WIDTH_WITHOUT_TERMINAL = 160
WIDEST = 10_000
"""Columns that any table finds room in."""
NEAR = dict(
    zip("–—−×·±ᵀτ∞’", ("-", "-", "-", "x", ".", "+-", "^T", "tau", "inf", "'"), strict=True)
)
"""What stands for a character where the stream knows ASCII only."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the entry point, which knows that a reader may go away."""
        raise BrokenPipeError


def console(stream: TextIO | None = None, *, width: int = WIDTH_WITHOUT_TERMINAL) -> Console:
    """A console on a stream, ``width`` columns wide where no terminal says otherwise."""
    target = sys.stdout if stream is None else stream
    _never_fail_to_encode(target)
    free = target.isatty() or "COLUMNS" in os.environ
    return _Console(
        file=target, width=None if free else width, highlight=False, emoji=False, soft_wrap=False
    )


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document, the schema's version first; NaN and infinities become null."""
    _never_fail_to_encode(sys.stdout)
    sys.stdout.write(to_json(document))


def to_json(document: Mapping[str, Any]) -> str:
    """The document that ``print_json`` prints."""
    return (
        json.dumps(
            {"schema_version": SCHEMA_VERSION, **_plain(document)}, indent=2, allow_nan=False
        )
        + "\n"
    )


def print_error(message: str) -> None:
    """Print one error on standard error: what failed and what to do, without control characters."""
    stream = sys.stderr
    if stream is None or stream.closed:
        return
    _never_fail_to_encode(stream)
    lines = [" ".join(line.split()) for line in message.splitlines() if line.strip()]
    text = "\n".join(lines) or "failed without a message"
    try:
        stream.write("qkvary: " + printable(text) + "\n")
        stream.flush()
    except OSError:
        # Nobody reads standard error any more; the exit code still tells.
        return


def printable(text: str) -> str:
    """The text with control characters and lone surrogates written as escapes."""
    return "".join(
        letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text
    )


def table(
    columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], *, title: str = ""
) -> Table:
    """A plain table: columns are (heading, "left" or "right"); cells are text, never markup."""
    made = Table(
        box=None,
        show_header=any(heading for heading, _ in columns),
        title=title or None,
        title_justify="left",
        pad_edge=False,
        header_style="bold",
    )
    for heading, side in columns:
        made.add_column(heading, justify="right" if side == "right" else "left", overflow="fold")
    for row in rows:
        made.add_row(*(_escape(printable(cell)) for cell in row))
    return made


def fits(screen: Console, made: Table) -> bool:
    """Whether a table needs no more columns than the screen has."""
    wide = screen.options.update_width(WIDEST)
    return Measurement.get(screen, wide, made).maximum <= screen.width


def print_rows(
    screen: Console, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]
) -> None:
    """Print a table where it fits the screen, otherwise a list for each row.

    Args:
        screen: Where to.
        columns: As of :func:`table`; the first is the name of a row.
        rows: Their cells.
    """
    filled = [list(row) for row in rows]
    made = table(columns, filled)
    if fits(screen, made):
        screen.print(made)
        return
    for name, *cells in filled:
        screen.print(Text(printable(name), style="bold"))
        for (heading, _), cell in zip(columns[1:], cells, strict=True):
            if cell not in {"", MISSING}:
                screen.print(Text(printable(f"  {heading}: {cell}" if heading else f"  {cell}")))


def print_sentences(screen: Console, title: str, sentences: Iterable[str]) -> None:
    """Print a list of sentences under a title."""
    screen.print(Text(f"\n{title}", style="bold"))
    for sentence in sentences:
        screen.print(Text(f"  - {printable(sentence)}"))


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """A curve in one line of text; ASCII where the stream knows no more."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    marks = "▁▂▃▄▅▆▇█" if _knows(sys.stdout, "▁█") else "_.-=+*%#"
    low, high = min(finite), max(finite)
    stride = max(1, math.ceil(len(values) / width))
    points = [values[start] for start in range(0, len(values), stride)]
    scale = (len(marks) - 1) / (high - low) if high > low else 0.0
    return "".join(
        marks[round((value - low) * scale)] if math.isfinite(value) else "!" for value in points
    )


def bar(value: float, most: float, *, width: int) -> str:
    """A bar as long as a value's share of the largest; ASCII where the stream knows no more."""
    if most <= 0 or value <= 0:
        return ""
    if not _knows(sys.stdout, "█▏"):
        return "#" * max(1, round(width * value / most))
    eighths = max(1, round(8 * width * value / most))
    full, rest = divmod(eighths, 8)
    return "█" * full + ("▏▎▍▌▋▊▉"[rest - 1] if rest else "")


def _escape(text: str) -> str:
    return text.replace("[", r"\[")


def _knows(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _never_fail_to_encode(stream: TextIO) -> None:
    """Let a stream that knows few characters print near ones: a hyphen for a dash."""
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


def _plain(value: Any) -> Any:
    """JSON-ready data of dataclasses, mappings, sequences and paths."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value)
        return {str(key): _plain(item) for key, item in pairs.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
