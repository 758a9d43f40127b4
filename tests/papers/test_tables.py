"""Published figures: the files are valid and can be searched."""

import json
from importlib import resources
from typing import Any

import pytest

from qkvary.arch.labels import format_label, parse_variant
from qkvary.arch.published_quality import LANGUAGE_MODELS, OTHER_NETWORKS
from qkvary.papers.catalog import published_names
from qkvary.papers.tables import decode_table, load_published


@pytest.mark.parametrize("name", published_names())
def test_every_file_is_a_table_with_its_source(name: str) -> None:
    table = load_published(name)
    assert table.name == name
    assert table.title
    assert table.paper in table.source
    assert table.place in table.source
    assert table.figures
    assert table.note.endswith(".")
    assert len({(figure.row, figure.column) for figure in table.figures}) == len(table.figures)
    for column in table.columns:
        assert column.title
        assert (column.metric is None) or column.tasks
        for variant in column.variants:
            assert variant == format_label(parse_variant(variant))


def test_every_table_of_the_papers_is_there() -> None:
    names = set(published_names())
    assert {f"three-projections-table-{number}" for number in range(1, 12)} <= names
    assert {f"key-value-table-{number}" for number in range(1, 4)} <= names
    assert {"query-identity-table-2", "poster-downstream", "poster-measured"} <= names


def content() -> dict[str, Any]:
    text = (
        resources.files("qkvary.papers.poster") / "published" / "poster-measured.json"
    ).read_text()
    return json.loads(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "expected schema_version 1 and its own name, got 2"),
        ({"name": "another"}, "got 1 and 'another'"),
        ({"columns": {}}, "no column 'low'"),
    ],
)
def test_a_damaged_table_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_table({**content(), **change}, "poster-measured")


def test_the_small_table_of_quality_is_as_printed() -> None:
    """``arch`` has no other figures than the documents."""
    places = {
        "300M": ("three-projections-table-4", "validation_perplexity"),
        "1.2B": ("three-projections-table-10", "perplexity"),
        "synthetic tasks, 2 and 4 heads": ("three-projections-table-2", "average"),
        "124M": ("query-identity-table-2", "validation_loss"),
    }
    for table in (*LANGUAGE_MODELS.values(), *OTHER_NETWORKS):
        name, column = places[table.networks]
        document = load_published(name)
        assert table.source == document.source
        rows = {one.variant: one for one in document.figures if one.column == column}
        assert {label: one.printed for label, one in table.variants.items()} == {
            label: one.printed for label, one in rows.items() if label
        }
        quoted = next(one for one in document.columns if one.key in (column, "change"))
        for label, one in table.variants.items():
            row = rows[label].row
            if one.change:
                quoted = next(one for one in document.columns if one.key == "change")
                assert one.change == document.figure(row, "change").printed.removesuffix("%")
            if one.tokens_per_second:
                speed = document.figure(row, "tokens_per_second").value
                assert one.tokens_per_second == speed
        assert table.quantity == f"{quoted.title} ({quoted.unit})"
