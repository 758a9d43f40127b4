"""The papers' figures as data, as printed.

One JSON file per published table, in ``published/``, found by its file name. ``recomputation``
derives whether a figure follows from the paper's own inputs. Never imports torch, numpy or scipy.
"""

import difflib
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from qkvary.arch.labels import format_label, parse_variant
from qkvary.literature.packaged import packaged_names, read_packaged
from qkvary.text.names import listed, suggest

SCHEMA_VERSION = 1
_FOLDER = "published"

QUALITY_COLUMNS = (
    ("three-projections-table-4", "change", "perplexity", "300M", 16),
    ("three-projections-table-10", "change", "perplexity", "1.2B", 32),
    ("three-projections-table-2", "average", "accuracy", "synthetic tasks, 2 and 4 heads", None),
    ("query-identity-table-2", "validation_loss", "nats", "124M", 12),
)
"""The columns that :func:`published_quality` searches, small language models first:
table, column, what a change is counted in, the networks and their heads (None if they differ)."""

BASELINE = "QKV"
"""The variant to which published changes of quality are relative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedColumn:
    """One column of a published table."""

    key: str
    title: str
    unit: str
    tasks: tuple[str, ...]
    """The tasks of this package to which the column corresponds; several for an average."""
    metric: str | None
    """The metric of those tasks, e.g. ``accuracy``; None if nothing here is comparable."""
    where: tuple[tuple[str, float | str], ...]
    """The sizes of the column's setting (``context``, ``d_model``, ``num_layers``, ``num_heads``,
    ``steps``, ``learning_rate``, ``source``); empty for an average over all settings of the
    tasks."""
    variants: tuple[str, ...]
    """The variants of the column, if columns are variants."""
    stated: bool
    """Whether its figures are settings or unsupported claims, neither measured nor derived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigure:
    """One printed figure."""

    row: str
    """The label of the row in the paper."""
    variant: str | None
    """The canonical label of the row, or None if it is not a variant."""
    column: str
    printed: str
    """The printed text, e.g. ``+0.7%``; ``-`` if the paper prints none."""
    value: float | None
    """The number in the unit of the column; None for words and formulas."""
    std: float | None
    note: str
    """A remark on the figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """One table of a paper, poster or notebook."""

    name: str
    title: str
    paper: str
    place: str
    """The location in the source, e.g. ``Table 4``."""
    arxiv: str | None
    unit: str
    columns: tuple[PublishedColumn, ...]
    rows: tuple[str, ...]
    figures: tuple[PublishedFigure, ...]
    note: str
    runs: int | None = None
    """Runs behind each figure, where it is their mean."""

    @property
    def source(self) -> str:
        """The source on one line."""
        where = f"{self.paper}, {self.place}"
        return f"{where} (arXiv {self.arxiv})" if self.arxiv else where

    def figure(self, row: str, column: str) -> PublishedFigure:
        """Return one figure; a KeyError lists the rows and columns."""
        for figure in self.figures:
            if (figure.row, figure.column) == (row, column):
                return figure
        raise KeyError(
            f"no figure {row!r}, {column!r} in {self.name}; rows are {list(self.rows)}, columns "
            f"{[one.key for one in self.columns]}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedQuality:
    """The published change of quality of a variant."""

    variant: str
    change: str
    """The printed change, e.g. ``+3.1 %``."""
    measure: str
    """The unit of the change: ``perplexity`` (after a percentage) or ``nats``."""
    networks: str
    """The networks that were compared: their size and heads, or their tasks."""
    num_heads: int | None
    """Their query heads; None if they differ."""
    quantity: str
    source: str
    note: str


def published_names() -> tuple[str, ...]:
    """Return the names of all published tables, sorted."""
    return packaged_names(_FOLDER)


@functools.cache
def load_published(name: str) -> PublishedTable:
    """Read one published table.

    Raises:
        ValueError: for an unknown name, with the nearest known one.
    """
    return decode_table(read_packaged(_FOLDER, name, "a published table"), name)


def find_published(text: str) -> str:
    """Return the full name of a table, given it or an unambiguous end of it.

    Raises:
        ValueError: for no match or several, with suggestions.
    """
    names = published_names()
    if text in names:
        return text
    found = [name for name in names if name.endswith(f"-{text}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(
            f"expected one published table, got {text!r}, which is {listed(found, 'or')}"
        )
    ends = {name.split("-", count)[-1] for name in names for count in range(name.count("-") + 1)}
    close = difflib.get_close_matches(text, sorted(ends), n=1)
    near = [name for name in names if name.endswith(tuple(close))] if close else []
    said = f"did you mean {listed(near, 'or')}?" if near else suggest(text, names)
    raise ValueError(f"expected a published table, got {text!r}; {said}")


def decode_table(data: Mapping[str, Any], name: str) -> PublishedTable:
    """Build a table from the contents of its file.

    Raises:
        ValueError: if the contents have another schema or name.
    """
    if data.get("schema_version") != SCHEMA_VERSION or data.get("name") != name:
        raise ValueError(
            f"published table {name!r}: expected schema_version {SCHEMA_VERSION} and its own name, "
            f"got {data.get('schema_version')!r} and {data.get('name')!r}"
        )
    columns = cast(Mapping[str, Mapping[str, Any]], data["columns"])
    rows = cast(Mapping[str, Mapping[str, Any]], data["rows"])
    return PublishedTable(
        name=name,
        title=data["title"],
        paper=data["paper"],
        place=data["place"],
        arxiv=data.get("arxiv"),
        unit=data.get("unit", ""),
        columns=tuple(_column(key, column, data) for key, column in columns.items()),
        rows=tuple(rows),
        figures=tuple(
            _figure(label, row, key, columns, data)
            for label, row in rows.items()
            for key in row["figures"]
        ),
        note=data.get("note", ""),
        runs=data.get("runs"),
    )


def published_quality(label: str, *, num_heads: int | None = None) -> PublishedQuality | None:
    """Return the published change of quality of a variant, or None if none was published.

    A column of changes is quoted as printed; from a column of results the baseline is subtracted.

    Args:
        label: The variant, in any spelling.
        num_heads: Query heads of the layer next to which the change is shown: language models with
            as many come first. Where the variant has a number of KV heads, networks with other
            query heads share other parts of the cache and are skipped.
    """
    parsed = parse_variant(label)
    variant, shares_heads = format_label(parsed), parsed.num_kv_heads is not None
    if variant == BASELINE:
        return None
    nearest = sorted(
        QUALITY_COLUMNS, key=lambda one: num_heads is not None and one[-1] != num_heads
    )
    for name, key, measure, networks, heads in nearest:
        if shares_heads and num_heads not in (None, heads):
            continue
        table = load_published(name)
        column = next(column for column in table.columns if column.key == key)
        found = {figure.variant: figure for figure in table.figures if figure.column == key}
        figure, baseline = found.get(variant), found.get(BASELINE)
        if figure is None or figure.value is None:
            continue
        if key == "change":
            change, note = f"{figure.printed.removesuffix('%')} %", figure.note
        elif baseline is None or baseline.value is None:
            continue
        else:
            change = f"{figure.value - baseline.value:+.3f}"
            note = f"{figure.printed} against {baseline.printed}"
        return PublishedQuality(
            variant=variant,
            change=change,
            measure=measure,
            networks=networks if heads is None else f"{networks}, {heads} heads",
            num_heads=heads,
            quantity=f"{column.title} ({column.unit})" if column.unit else column.title,
            source=table.source,
            note=note,
        )
    return None


def _column(key: str, column: Mapping[str, Any], data: Mapping[str, Any]) -> PublishedColumn:
    return PublishedColumn(
        key=key,
        title=column["title"],
        unit=column.get("unit", data.get("unit", "")),
        tasks=tuple(column.get("tasks", ())),
        metric=column.get("metric"),
        where=tuple(column.get("where", {}).items()),
        variants=tuple(column.get("variants", ())),
        stated=column.get("stated", False),
    )


def _figure(
    label: str,
    row: Mapping[str, Any],
    key: str,
    columns: Mapping[str, Mapping[str, Any]],
    data: Mapping[str, Any],
) -> PublishedFigure:
    """Read one figure: a number, or a number with its printed form."""
    entry = row["figures"][key]
    if key not in columns:
        raise ValueError(f"published table {data['name']!r}: no column {key!r} (row {label!r})")
    detail: Mapping[str, Any] = entry if isinstance(entry, dict) else {"value": entry}
    value = detail.get("value")
    number = float(value) if isinstance(value, int | float) else None
    return PublishedFigure(
        row=label,
        variant=format_label(parse_variant(row["variant"])) if row.get("variant") else None,
        column=key,
        printed=str(detail.get("printed", "-" if value is None else value)),
        value=number,
        std=detail.get("std"),
        note=detail.get("note", columns[key].get("note", "")),
    )
