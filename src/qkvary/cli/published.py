"""Recompute the papers' tables: every figure as printed and as it should be, with a verdict."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from qkvary.cli._options import Json
from qkvary.cli._output import console, print_json, printable, table
from qkvary.literature.figures import (
    PublishedTable,
    find_published,
    load_published,
    published_names,
)
from qkvary.literature.recomputation import (
    VERDICTS,
    FigureVerdict,
    Recomputed,
    count_verdicts,
    recompute,
    spell,
)
from qkvary.text.numbers import MISSING

WIDE = 120
"""Columns from which on a table is easier to read than a list."""
MEANINGS = (
    "equal: the recomputed number rounds to the printed one. rounding: cut off, rounded twice or "
    "to fewer digits, or left open by rounded inputs. other convention: only as the line says. "
    "wrong: none of these. measured: an experiment. stated: words, settings, or nothing printed."
)


def complete_table(_context: object) -> Iterator[str]:
    """The names of the tables, for the shell."""
    yield from published_names()


VerdictChoice = Literal["equal", "rounding", "other-convention", "wrong", "measured", "stated"]
Name = Annotated[
    str,
    Parameter(
        name="TABLE",
        help="Tables to print row by row: a name, or its end (table-7, scenario). None: all, in "
        "short.",
        completer=complete_table,
    ),
]
Verdicts = Annotated[
    tuple[VerdictChoice, ...],
    Parameter(
        name="--verdict",
        negative=(),
        show_default=False,
        help="Only figures with this verdict; repeat it for more.",
    ),
]


def command(*tables: Name, verdict: Verdicts = (), json_output: Json = False) -> None:
    """Recompute the papers' tables: every figure as printed and as it should be, with a verdict.

    Without a table: how many figures of each table are equal, and every figure that is not, with
    the formula and the reason. With tables: every figure of theirs.
    """
    names = [find_published(name) for name in tables] or sorted(published_names(), key=_order)
    wanted = [_verdict(choice) for choice in verdict]
    rows = [row for name in names for row in recompute(name)]
    if wanted:
        rows = [row for row in rows if row.verdict in wanted]
    elif not tables and not json_output:
        rows = [row for row in rows if row.needs_a_word]
    if json_output:
        print_json(
            {
                "tables": [_describe(load_published(name)) for name in names],
                "rows": [_to_dict(row) for row in rows],
            }
        )
        return
    screen = console()
    if not tables:
        _print_summary(screen, names)
    for name in names:
        _print_table(screen, load_published(name), [row for row in rows if row.table == name])
    if not rows:
        screen.print("no figure with this verdict")
    screen.print(Text("\n" + MEANINGS, style="dim"))


def _order(name: str) -> tuple[str, int]:
    """Table 10 after Table 9."""
    place, _, number = name.rpartition("-")
    return (place, int(number)) if number.isdigit() else (name, 0)


def _verdict(choice: VerdictChoice) -> FigureVerdict:
    return next(verdict for verdict in VERDICTS if verdict.replace(" ", "-") == choice)


def _print_summary(screen: Console, names: Sequence[str]) -> None:
    counts = {name: count_verdicts(name) for name in names}
    total = Counter[FigureVerdict]()
    for found in counts.values():
        total.update(found)
    lines = [
        *((name, counts[name]) for name in names),
        ("all", {verdict: total[verdict] for verdict in VERDICTS}),
    ]
    if screen.width >= WIDE:
        columns = [("table", "left"), ("figures", "right")]
        columns += [(verdict, "right") for verdict in VERDICTS]
        cells = [
            [name, str(sum(found.values())), *(str(number or MISSING) for number in found.values())]
            for name, found in lines
        ]
        screen.print(table(columns, cells))
        return
    for name, found in lines:
        parts = ", ".join(f"{number} {verdict}" for verdict, number in found.items() if number)
        screen.print(Text(f"{name}: {parts}"))


def _print_table(screen: Console, published: PublishedTable, rows: Sequence[Recomputed]) -> None:
    if not rows:
        return
    screen.print()
    screen.print(Text.assemble((published.name, "bold"), f"  {printable(published.title)}"))
    screen.print(Text(printable(published.source), style="dim"))
    titles = {column.key: column.title for column in published.columns}
    if screen.width >= WIDE:
        columns = [("figure", "left"), ("paper", "right"), ("recomputed", "right")]
        columns += [("verdict", "left"), ("how", "left")]
        cells = [
            [_name(row, titles), row.figure.printed, _number(row), row.verdict, " ".join(_how(row))]
            for row in rows
        ]
        screen.print(table(columns, cells))
    else:
        for row in rows:
            _print_row(screen, row, titles)
    if published.note:
        screen.print(Text(printable(published.note), style="dim"))


def _print_row(screen: Console, row: Recomputed, titles: dict[str, str]) -> None:
    screen.print(Text(printable(_name(row, titles))))
    line = f"  paper {row.figure.printed}, recomputed {_number(row)}: "
    screen.print(Text.assemble(printable(line), (row.verdict, "bold")))
    for part in _how(row):
        screen.print(Text(f"  {printable(part)}"))


def _name(row: Recomputed, titles: dict[str, str]) -> str:
    """The row and what the column is about, which a table of single figures does not say."""
    title = titles[row.figure.column]
    return row.figure.row if title == "figure" else f"{row.figure.row}: {title}"


def _number(row: Recomputed) -> str:
    return spell(row.derivation.value, row.figure) if row.derivation else MISSING


def _how(row: Recomputed) -> Iterator[str]:
    """The formula, what was counted, why it is not equal, and the other readings."""
    derivation = row.derivation
    if derivation is None:
        if row.figure.note:
            yield row.figure.note
        return
    counted = f" ({derivation.convention})" if derivation.convention else ""
    yield f"{derivation.formula}{counted}."
    if row.why or derivation.note:
        yield row.why or derivation.note
    for reading in derivation.others:
        if reading != row.reading:
            yield f"{spell(reading.value, row.figure)} with {reading.convention}."


def _describe(published: PublishedTable) -> dict[str, Any]:
    return {
        "name": published.name,
        "title": published.title,
        "source": published.source,
        "note": published.note,
        "counts": count_verdicts(published.name),
    }


def _to_dict(row: Recomputed) -> dict[str, Any]:
    figure, derivation = row.figure, row.derivation
    spread = derivation.spread if derivation else None
    return {
        "table": row.table,
        "row": figure.row,
        "variant": figure.variant,
        "column": figure.column,
        "unit": row.unit,
        "printed": figure.printed,
        "value": figure.value,
        "recomputed": derivation.value if derivation else None,
        "formula": derivation.formula if derivation else None,
        "convention": derivation.convention if derivation else None,
        "low": spread[0] if spread else None,
        "high": spread[1] if spread else None,
        "verdict": row.verdict,
        "reading": row.reading,
        "others": derivation.others if derivation else (),
        "why": row.why,
        "note": figure.note or (derivation.note if derivation else ""),
    }
