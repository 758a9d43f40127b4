import csv
import io

import pytest

from qkvary.reports.tables import (
    Cell,
    Column,
    Table,
    csv_field,
    label,
    named,
    number,
    pick,
    plain,
    table_csv,
    tabulate,
    word,
)
from tests.reports.hostile import PAYLOADS

DANGEROUS = ("=", "+", "-", "@", "\t", "\r")


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\n@x"])
def test_formulas_become_text(text: str) -> None:
    assert csv_field(text) == f"'{text}"


def test_no_payload_makes_a_formula_or_another_row() -> None:
    columns = tuple(Column(key=text, title="x") for text in PAYLOADS)
    made = Table(key="t", title="t", columns=columns, rows=(tuple(map(plain, PAYLOADS)),))
    rows = read(table_csv(made))
    assert [len(row) for row in rows] == [len(PAYLOADS)] * 2
    for field in (*rows[0], *rows[1]):
        assert not field.startswith(DANGEROUS)


def table(*cells: Cell) -> Table:
    columns = (
        Column(key="variant", title="variant", numeric=False),
        Column(key="mean", title="mean"),
    )
    return Table(key="t", title="A table", columns=columns, rows=(cells,), notes=("A note.",))


def test_csv_holds_raw_figures() -> None:
    made = table(named("Q-K=V"), Cell(raw=-0.12345, text="−0.123", below=("[−0.2, 0]",)))
    assert read(table_csv(made)) == [["variant", "mean"], ["Q-K=V", "-0.12345"]]


def test_picked_attributes_keep_their_order_and_may_be_renamed() -> None:
    cell = Cell(raw=3, text="three")
    assert list(pick(cell, "text number=raw kind=text.__class__.__name__").items()) == [
        ("text", "three"),
        ("number", 3),
        ("kind", "str"),
    ]
    assert pick(None, "text number=raw") == {"text": None, "number": None}
    with pytest.raises(AttributeError):
        pick(cell, "missing")


def test_a_column_names_what_it_shows_of_each_item() -> None:
    marked = Cell(raw=1, text="one", tone="warn")
    items = [
        {"size": 0.25, "of": {"name": "<a>"}, "own": marked},
        {"size": None, "of": {"name": ""}, "own": None},
    ]
    table = tabulate(
        "key",
        "title",
        items,
        label("Q-K=V=of.name", "who"),
        number("size", write=lambda size: f"{size or 0:.0%}"),
        number("own", below="unit"),
        word("both=", write=lambda item: named(str(len(item)))),
        notes=("note",),
    )
    assert [(one.key, one.title, one.numeric, one.below) for one in table.columns] == [
        ("Q-K=V", "who", False, ""),
        ("size", "size", True, ""),
        ("own", "own", True, "unit"),
        ("both", "both", False, ""),
    ]
    assert table.rows[0] == (named("<a>"), plain(0.25, "25%"), marked, named("3"))
    assert table.rows[1] == (named(""), plain(None, "0%"), plain(None), named("3"))
    assert table.notes == ("note",)
    assert not table.main
