"""Prints the tables of reports in the terminal."""

from rich.console import Console
from rich.text import Text

from qkvary.cli._output import fits, print_rows, printable, table
from qkvary.reports.tables import Table, one_line


def print_table(screen: Console, report: Table, *, small: bool = True) -> None:
    """Print a table of a report with its notes, as a list where it does not fit the screen.

    Args:
        screen: Where to.
        report: The table. The second lines of its headings are left out where it only fits so.
        small: Print the further lines of cells too.
    """
    sides = ["right" if one.numeric else "left" for one in report.columns]
    full = [f"{one.title} {one.below}".strip() for one in report.columns]
    titles = [one.title for one in report.columns]
    rows = [[one_line(cell) if small else cell.text for cell in row] for row in report.rows]
    short = table(list(zip(titles, sides, strict=True)), rows)
    whole = table(list(zip(full, sides, strict=True)), rows)
    if not fits(screen, whole) and fits(screen, short) and len(set(titles)) == len(titles):
        screen.print(short)
    else:
        print_rows(screen, list(zip(full, sides, strict=True)), rows)
    for note in report.notes:
        screen.print(Text(printable(note), style="dim"))
