"""The report of the papers' tables, recomputed: every figure as printed and recomputed."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from qkvary.literature.figures import PublishedTable
from qkvary.literature.recomputation import (
    VERDICTS,
    FigureVerdict,
    Recomputed,
    count_verdicts,
    format_value,
)
from qkvary.reports.report import Block, Prose, Report, Section
from qkvary.reports.tables import Cell, Column, Table, Tone, named, pick, plain
from qkvary.text import names
from qkvary.text.numbers import MISSING

MEANINGS = (
    "equal: the recomputed number rounds to the printed one. rounding: cut off, rounded twice or "
    "to fewer digits, or left open by rounded inputs. other convention: only as the line says. "
    "wrong: none of these. measured: an experiment. stated: words, settings, or nothing printed."
)
_TONES: dict[FigureVerdict, Tone] = {"wrong": "worse", "rounding": "quiet", "equal": "better"}


def published_report(
    tables: Sequence[PublishedTable], rows: Sequence[Recomputed], *, counts: bool
) -> Report:
    """Return the recomputed figures of some tables.

    Args:
        tables: The tables, in this order.
        rows: The figures to show.
        counts: Also show the number of figures per table and verdict.
    """
    listed = [
        _section(table, own)
        for table in tables
        if (own := [row for row in rows if row.table == table.name])
    ]
    summary = Section(key="verdicts", title="Verdicts", blocks=(_counts(tables),), brief=True)
    empty = Section(
        key="none",
        title="Figures",
        blocks=(Prose("No figure with this verdict."),),
        brief=True,
    )
    return Report(
        subject="published figures",
        question="Which figures of the papers follow from their own inputs?",
        lead=MEANINGS,
        sections=(*([summary] if counts else []), *(listed or [empty])),
        data={
            "tables": [_table_data(table) for table in tables],
            "rows": [_row_data(row) for row in rows],
        },
    )


def _counts(tables: Sequence[PublishedTable]) -> Table:
    total = Counter[FigureVerdict]()
    lines: list[tuple[str, Counter[FigureVerdict]]] = []
    for table in tables:
        found = Counter(count_verdicts(table.name))
        total.update(found)
        lines.append((table.name, found))
    return Table(
        key="verdicts",
        title="Figures of each table by verdict",
        columns=(
            Column(key="table", title="table", numeric=False),
            Column(key="figures", title="figures"),
            *(Column(key=verdict.replace(" ", "_"), title=verdict) for verdict in VERDICTS),
        ),
        rows=tuple(
            (
                named(name),
                plain(found.total()),
                *(plain(found[verdict] or None) for verdict in VERDICTS),
            )
            for name, found in [*lines, ("all", total)]
        ),
        main=True,
    )


def _section(published: PublishedTable, rows: Sequence[Recomputed]) -> Section:
    titles = {column.key: column.title for column in published.columns}
    table = Table(
        key=published.name,
        title=published.title,
        columns=(
            Column(key="figure", title="figure", numeric=False),
            Column(key="printed", title="paper"),
            Column(key="recomputed", title="recomputed"),
            Column(key="verdict", title="verdict", numeric=False),
            Column(key="how", title="how", numeric=False),
        ),
        rows=tuple(_row(row, titles) for row in rows),
        notes=tuple(note for note in (published.source, published.note) if note),
    )
    blocks: tuple[Block, ...] = (table,)
    return Section(key=names.slug(published.name), title=published.name, blocks=blocks, brief=True)


def _row(row: Recomputed, titles: dict[str, str]) -> tuple[Cell, ...]:
    # The column of a table of single figures has no meaning.
    title = titles[row.figure.column]
    name = row.figure.row if title == "figure" else f"{row.figure.row}: {title}"
    value = row.derivation.value if row.derivation else None
    return (
        named(name),
        plain(row.figure.value, row.figure.printed),
        plain(value, MISSING if value is None else format_value(value, row.figure)),
        plain(row.verdict, tone=_TONES.get(row.verdict, "")),
        plain(" ".join(_how(row))),
    )


def _how(row: Recomputed) -> Iterator[str]:
    """Yield the formula, its convention, the reason of a difference, and the alternatives."""
    derivation = row.derivation
    if derivation is None:
        if row.figure.note:
            yield row.figure.note
        return
    counted = f" ({derivation.convention})" if derivation.convention else ""
    yield f"{derivation.formula}{counted}."
    if row.why or derivation.note:
        yield row.why or derivation.note
    for alternative in derivation.others:
        if alternative != row.alternative:
            yield f"{format_value(alternative.value, row.figure)} with {alternative.convention}."


def _table_data(published: PublishedTable) -> dict[str, Any]:
    return {**pick(published, "name title source note"), "counts": count_verdicts(published.name)}


def _row_data(row: Recomputed) -> dict[str, Any]:
    derivation = row.derivation
    low, high = (derivation.spread if derivation else None) or (None, None)
    return {
        **pick(
            row,
            "table row=figure.row variant=figure.variant column=figure.column unit "
            "printed=figure.printed value=figure.value recomputed=derivation.value "
            "formula=derivation.formula convention=derivation.convention",
        ),
        "low": low,
        "high": high,
        **pick(row, "verdict reading=alternative"),
        "others": derivation.others if derivation else (),
        "why": row.why,
        "note": row.figure.note or (derivation.note if derivation else ""),
    }
