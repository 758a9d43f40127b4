"""Reads published tables as they are printed: one JSON file per table, named after the table.

The module ``recomputation`` derives whether a figure follows from the paper's own inputs. Never
imports torch, numpy or scipy.
"""

import functools
from collections.abc import Mapping
from typing import Any, cast

from qkvary.arch.labels import format_label, parse_variant
from qkvary.papers.catalog import published_file
from qkvary.studies.published_tables import PublishedColumn, PublishedFigure, PublishedTable

SCHEMA_VERSION = 1


@functools.cache
def load_published(name: str) -> PublishedTable:
    """Read one published table."""
    return decode_table(published_file(name), name)


def decode_table(data: Mapping[str, Any], name: str) -> PublishedTable:
    """Build a table from the contents of its file."""
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
    """Read one figure; its entry is a number, or an object with the number and its printed form."""
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
        in_code=detail.get("in_code", False),
    )
