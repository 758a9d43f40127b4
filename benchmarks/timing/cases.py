"""The table of the cases that benchmarks printed: ratio, goal, and whether it is met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qkvary.reports.tables import Cell, Column, Table, plain
from qkvary.text import numbers


def make_table(key: str, title: str, lines: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row for each line of JSON that a benchmark printed."""
    columns = (
        Column(key="case", title="case", numeric=False),
        *(Column(key=name, title=name) for name in ("ratio", "goal", "rounds")),
        Column(key="met", title="met", numeric=False),
    )
    return Table(key=key, title=title, columns=columns, rows=tuple(map(_row, lines)))


def _row(line: Mapping[str, Any]) -> tuple[Cell, ...]:
    value, low, high = (numbers.real(one) for one in (line["ratio"], *line["interval"]))
    sign = "at most" if line["better"] == "lower" else "at least"
    return (
        plain(line["case"]),
        plain(line["ratio"], f"{value} [{low}, {high}]"),
        plain(line["goal"], f"{sign} {line['goal']:g}"),
        plain(line["rounds"]),
        plain("yes" if line["met"] else "no"),
    )
