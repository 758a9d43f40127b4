"""The summary in the terminal: the answer, the planned contrasts, one table, what is missing.

Works without colour and at 80 columns.

Names are printed as plain text: neither markup nor escape sequences in them have any effect.
"""

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from qkvary.reports import contents
from qkvary.studies.results.summary import ResultTable, Summary, VariantRow
from qkvary.text import names, numbers

_NARROWEST = 15
"""Columns that one task needs."""
_ANSWERS = 2
"""The overall answer and the first table's; the table below says the rest. All contrasts."""
_MARGIN = 22
"""Columns for the variant and the counts."""
_STYLES = {"better": "bold green", "worse": "bold red"}
_PLAIN = str.maketrans(
    dict(zip("−–×↑↓’“”", '--x^v\'""', strict=True))
    | {"±": "+-", "▲": "better", "▼": "worse", "…": "...", "→": "->"}
)


def print_summary(summary: Summary, console: Console) -> None:
    """Print the summary.

    Args:
        summary: What the study found.
        console: Where to; its width, colours and encoding are respected.
    """
    write = _writer(console)
    console.print(write(summary.question, "bold"))
    console.print()
    planned = (contrast.answer for contrast in summary.contrasts)
    for answer in (*summary.answers[:_ANSWERS], *planned):
        console.print(Padding(write(answer), (0, 0, 0, 2)))
    console.print()
    tables = contents.main_tables(summary)
    step = max(1, (console.width - _MARGIN) // _NARROWEST)
    for start in range(0, len(tables), step):
        console.print(_table(summary, tables[start : start + step], console))
    console.print(write(_legend(summary), "dim"))
    for caveat in summary.caveats:
        console.print(write(f"Note: {caveat}", "yellow"))


def _writer(console: Console) -> Callable[..., Text]:
    """Return a function that makes plain text that the console can encode."""

    def write(text: str, style: str = "") -> Text:
        return Text(_encodable(names.clip(text, 1200), console), style=style)

    return write


def _encodable(text: str, console: Console) -> str:
    text = names.clean(text)
    encoding = console.encoding or "utf-8"
    if encoding.lower().replace("-", "") in {"utf8", "utf16", "utf32"}:
        return text
    return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)


def _legend(summary: Summary) -> str:
    counts = contents.count_words(summary.counts)
    return (
        "Mean ± standard deviation over seeds, below it the paired difference to "
        f"{summary.baseline}. ▲ better, ▼ worse: supported at "
        f"{numbers.percent(summary.method.confidence, 0)} over all comparisons. Runs: {counts}."
    )


def _table(summary: Summary, tables: Sequence[ResultTable], console: Console) -> RichTable:
    write = _writer(console)
    grid = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    grid.add_column(write("variant"), no_wrap=True, max_width=20, overflow="ellipsis")
    for table in tables:
        way = "↑" if table.higher_is_better else "↓"
        head = f"{table.name}\n{contents.metric_name(table.metric)} {way}"
        grid.add_column(write(head), justify="right", max_width=18, overflow="fold")
    grid.add_column(write("runs"), justify="right", overflow="fold")
    for variant in summary.variants:
        counts = contents.variant_counts(summary, variant)
        note = f"{counts.done}/{counts.planned}"
        cells = [_cell(table, variant, console) for table in tables]
        grid.add_row(write(variant), *cells, write(note, "" if counts.complete else "yellow"))
    return grid


def _cell(table: ResultTable, variant: str, console: Console) -> Text:
    row = next((row for row in table.rows if row.variant == variant), None)
    if row is None or row.mean is None:
        return Text(_encodable(_empty(row), console), style="yellow")
    decimals = contents.decimals_for(table)
    text = numbers.fixed(row.mean, decimals)
    if row.std_seeds is not None:
        text += f" ± {numbers.fixed(row.std_seeds, decimals)}"
    parts = Text(_encodable(text, console))
    gap = row.difference
    if gap is not None and gap.mean is not None:
        arrow = contents.ARROWS.get(gap.verdict, "")
        below = f"{arrow} {numbers.fixed(gap.mean, decimals, True)}".strip()
        parts.append(_encodable(f"\n{below}", console), style=_STYLES.get(gap.verdict, "dim"))
    return parts


def _empty(row: VariantRow | None) -> str:
    return numbers.MISSING if row is None else contents.count_words(row.counts).replace("; ", "\n")
