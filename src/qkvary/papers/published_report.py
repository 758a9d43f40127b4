"""A report that compares every figure in the papers' tables with its recomputed value."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qkvary.papers.recomputation import (
    VERDICTS,
    FigureVerdict,
    Recomputed,
    count_verdicts,
    format_value,
)
from qkvary.reports.report import Prose, Report, Section
from qkvary.reports.tables import Cell, Table, Tone, named, number, pick, plain, tabulate, word
from qkvary.studies.published_tables import PublishedFigure, PublishedTable
from qkvary.text import names
from qkvary.text.numbers import MISSING

MEANINGS = (
    "The verdicts have these meanings. equal: the recomputed number rounds to the printed number. "
    "rounding: the two numbers agree up to rounding (the printed number was truncated, rounded "
    "twice, rounded to fewer digits, or derived from rounded inputs). other convention: the "
    "numbers are equal only under the convention that the line names. wrong: none of these "
    "applies. measured: the figure is the result of an experiment. stated: there is nothing to "
    "recompute (words, a setting, or an empty cell)."
)
_TONES: dict[FigureVerdict, Tone] = {"wrong": "worse", "rounding": "quiet", "equal": "better"}


def published_report(
    tables: Sequence[PublishedTable],
    rows: Sequence[Recomputed],
    *,
    counts: bool,
    shown: Sequence[Recomputed] | None = None,
) -> Report:
    """Return the report on tables and their recomputed figures, ``rows``.

    With ``counts``, the report begins with the number of figures per verdict. It lists the figures
    in ``shown``, by default all. The JSON data always has all figures.
    """
    shown = rows if shown is None else shown
    listed = [
        _section(table, own)
        for table in tables
        if (own := [row for row in shown if row.table == table.name])
    ]
    summary = Section(
        key="verdicts", title="Verdicts", blocks=(_count_figures(tables),), brief=True
    )
    empty = Section(
        key="none",
        title="Figures",
        blocks=(Prose("No number has this verdict."),),
        brief=True,
    )
    return Report(
        subject="published figures",
        question=(
            "Which of the papers' published numbers follow from the inputs that the papers give?"
        ),
        lead=MEANINGS,
        sections=(*([summary] if counts else []), *(listed or [empty])),
        data={
            "tables": [_table_data(table) for table in tables],
            "rows": [_row_data(row) for row in rows],
        },
    )


def _count_figures(tables: Sequence[PublishedTable]) -> Table:
    counts = {table.name: Counter(count_verdicts(table.name)) for table in tables}
    return count_table("Numbers of each table by verdict", "table", "figures", counts, VERDICTS)


def count_table(
    title: str, subject: str, unit: str, counts: Mapping[str, Counter[Any]], verdicts: Sequence[str]
) -> Table:
    """Return a table with verdict counts: a row per subject, such as a document, and a total."""
    total = sum(counts.values(), Counter[Any]())
    return tabulate(
        "verdicts",
        title,
        [*counts.items(), ("all", total)],
        word(f"{subject}=", subject, lambda row: named(row[0])),
        number(f"{unit}=", unit, lambda row: plain(row[1].total())),
        *(
            number(
                f"{one.replace(' ', '_')}=", one, lambda row, one=one: plain(row[1][one] or None)
            )
            for one in verdicts
        ),
        main=True,
    )


def _section(published: PublishedTable, rows: Sequence[Recomputed]) -> Section:
    titles = {column.key: column.title for column in published.columns}

    def name_figure(figure: PublishedFigure) -> Cell:
        # In a table of single figures, the column's title has no meaning.
        title = titles[figure.column]
        return named(figure.row if title == "figure" else f"{figure.row}: {title}")

    table = tabulate(
        published.name,
        published.title,
        rows,
        word("figure", write=name_figure),
        number("printed=figure", "paper", _printed),
        number("recomputed=", write=_value),
        word("verdict", write=lambda verdict: plain(verdict, tone=_TONES.get(verdict, ""))),
        word("how=", write=lambda row: plain(" ".join(_how(row)))),
        notes=filter(None, (published.source, published.note)),
    )
    return Section(
        key=names.slug(published.name), title=published.name, blocks=(table,), brief=True
    )


def _printed(figure: PublishedFigure) -> Cell:
    from_code = " (from the code)" if figure.in_code else ""
    return plain(figure.value, f"{figure.printed}{from_code}")


def _value(row: Recomputed) -> Cell:
    value = row.derivation.value if row.derivation else None
    return plain(value, MISSING if value is None else format_value(value, row.figure))


def _how(row: Recomputed) -> Iterator[str]:
    """Yield sentences: the formula, the reason for a difference, and the alternatives."""
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
            value = format_value(alternative.value, row.figure)
            yield f"With {alternative.convention}, the number is {value}."


def _table_data(published: PublishedTable) -> dict[str, Any]:
    return {**pick(published, "name title source note"), "counts": count_verdicts(published.name)}


def _row_data(row: Recomputed) -> dict[str, Any]:
    derivation = row.derivation
    low, high = (derivation.spread if derivation else None) or (None, None)
    return {
        **pick(
            row,
            "table row=figure.row variant=figure.variant column=figure.column unit "
            "printed=figure.printed in_code=figure.in_code value=figure.value "
            "recomputed=derivation.value formula=derivation.formula "
            "convention=derivation.convention",
        ),
        "low": low,
        "high": high,
        **pick(row, "verdict reading=alternative"),
        "others": derivation.others if derivation else (),
        "why": row.why,
        "note": row.figure.note or (derivation.note if derivation else ""),
    }
