import pytest

from qkvary.planning.pictures import draw_cache, draw_quality, draw_users
from qkvary.reports import plan_tables
from qkvary.reports.tables import Table
from tests.reports.plan_examples import make_plan


def cells(table: Table, variant: str, cache: str | None = None) -> dict[str, str]:
    row = next(
        row
        for row in table.rows
        if row[0].text == variant and (cache is None or row[1].text == cache)
    )
    return {
        column.key: " ".join((cell.text, *cell.below))
        for column, cell in zip(table.columns, row, strict=True)
    }


@pytest.mark.parametrize("context", [1, 1000, 2048, 32_768])
def test_cache_table_has_the_context_and_few_columns(context: int) -> None:
    picture = draw_cache(make_plan(context=context))
    assert picture is not None
    table = plan_tables.cache_table(picture, "cache", decimal=False)
    keys = [column.key for column in table.columns]
    if picture.low <= context:
        assert f"bytes_at_{float(context)}" in keys
    assert 3 <= len(keys) <= plan_tables.MOST_COLUMNS + 2
    assert len(table.rows) == len(make_plan().candidates.rows)


def test_users_table_has_the_device_and_counts_whole_users() -> None:
    picture = draw_users(make_plan())
    assert picture is not None
    table = plan_tables.users_table(picture, "users", decimal=False)
    own = next(place for place, one in enumerate(table.columns) if one.below == "this device")
    assert table.columns[own].title == "37.3 GiB"
    users = {row[0].text: row[own].raw for row in table.rows}
    assert users["QKV *"] == 13
    assert users["Q-MQA"] == 422
    raw = [cell.raw for row in table.rows for cell in row[1:]]
    assert all(isinstance(value, int) for value in raw)
    assert "none" in {cell.text for row in table.rows for cell in row[1:]}


def test_quality_table_marks_the_estimate_as_one() -> None:
    table = plan_tables.quality_table(draw_quality("300M"), "quality")
    row = cells(table, "Q-K=V")
    assert row["cache_share"] == "1/2"
    assert row["perplexity"] == "5.27"
    assert row["change_percent"] == "+3.1 [2.9, 3.3]"
    assert row["estimate_percent"] == "+6.0 to +8.0"
    assert row["standing"] == "dominated beyond rounding by GQA-4 and MQA"
    assert cells(table, "QKV")["estimate_percent"] == "–"
    assert table.columns[4].below == "% per real token, estimate"
