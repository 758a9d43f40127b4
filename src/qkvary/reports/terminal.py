"""Prints a report in the terminal: question, answer, brief sections and caveats; no drawings.

The whole report is printed on request. Otherwise the last line says how to get the rest.

The output needs neither colour nor a wide window: a table that does not fit is printed in parts.
Neither markup nor escape sequences in a text have any effect.
"""

import math
import shutil
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from qkvary.reports.report import Block, Bullets, Code, Pairs, Prose, Report, is_shortened
from qkvary.reports.tables import Cell, Table, shorten
from qkvary.text.names import printable

_WIDEST = 10_000
"""Width of a terminal that fits any table, in characters."""
_STYLES = {"better": "bold green", "worse": "bold red", "quiet": "dim", "warn": "yellow", "": ""}


def print_report(
    report: Report, screen: Console, *, full: bool = False, rest: str = "--full"
) -> None:
    """Print a report in full, or in brief with the command that prints the ``rest``."""
    if report.question:
        screen.print(_text(report.question, "bold"))
    if report.lead:
        screen.print(_text(report.lead, "dim"))
    if report.facts:
        screen.print(_text("; ".join(f"{name} {value}" for name, value in report.facts), "dim"))
    if report.answer:
        screen.print()
        _print_block(screen, Bullets(report.answer))
    for section in report.sections:
        if section.brief or (full and section.full):
            if section.title:
                screen.print(_text(f"\n{section.title}", "bold"))
            for block in section.blocks:
                shown = shorten(block) if isinstance(block, Table) and not full else block
                _print_block(screen, shown)
    if report.caveats:
        screen.print(_text("\nBefore you believe it", "bold"))
        _print_block(screen, Bullets(report.caveats))
    if not full and is_shortened(report):
        screen.print(_text(f"The whole report: {rest}", "dim"))


def print_table(screen: Console, table: Table) -> None:
    """Print a table with its notes, in parts if it does not fit."""
    if not table.main:
        screen.print(_text(f"\n{table.title}", "italic"))
    start, columns = 1, len(table.columns)
    wide = screen.options.update_width(_WIDEST)
    while start < columns or start == 1:
        end = columns
        grid = _grid(table, start, end)
        while Measurement.get(screen, wide, grid).maximum > screen.width and end > start + 1:
            end -= 1
            grid = _grid(table, start, end)
        screen.print(grid)
        start = max(end, start + 1)
    for note in table.notes:
        screen.print(_text(note, "dim"))


def _print_block(screen: Console, block: Block) -> None:
    match block:
        case Table():
            print_table(screen, block)
        case Prose():
            screen.print(_text(block.text, "dim" if block.small else ""))
        case Bullets():
            for item in block.items:
                screen.print(_text(f"  - {item}"))
        case Pairs():
            for name, value in block.items:
                screen.print(_text(f"  {name}"))
                screen.print(_text(f"    {value}", "dim"))
        case Code():
            for line in block.lines:
                screen.print(_text(f"  {line}"), soft_wrap=True)
        case _:
            # The brief view omits drawings and folded blocks.
            return


def _grid(table: Table, start: int, end: int) -> Grid:
    """Return the first column and the columns from ``start`` to ``end``."""
    places = [0, *range(start, end)]
    heading = any(column.title for column in table.columns)
    grid = Grid(box=None, show_header=heading, pad_edge=False, header_style="bold")
    for column in (table.columns[place] for place in places):
        head = _text("\n".join(filter(None, (column.title, column.below))))
        side = "right" if column.numeric else "left"
        grid.add_column(head, justify=side, overflow="fold", vertical="top")
    for row in table.rows:
        grid.add_row(*(_cell(row[place]) for place in places))
    return grid


def _cell(cell: Cell) -> Text:
    style = _STYLES[cell.tone]
    marked = "" if cell.below and cell.tone in {"better", "worse"} else style
    text = _text(cell.text, marked)
    for line in cell.below:
        text.append_text(_text(f"\n{line}", style or "dim"))
    return text


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def sparkline(values: Sequence[float]) -> str:
    """Return a curve as one line of text, in ASCII if stdout cannot encode block characters."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    width = min(80, max(10, shutil.get_terminal_size((82, 0)).columns - 2))
    try:
        marks = "▁▂▃▄▅▆▇█"
        marks.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        marks = "_.-=+*%#"
    low, high = min(finite), max(finite)
    stride = max(1, math.ceil(len(values) / width))
    points = [values[start] for start in range(0, len(values), stride)]
    scale = (len(marks) - 1) / (high - low) if high > low else 0.0
    return "".join(
        marks[round((value - low) * scale)] if math.isfinite(value) else "!" for value in points
    )
