from dataclasses import replace

from qkvary.planning.curves import compute_quality_points
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


def test_quality_table_has_the_printed_figures() -> None:
    table = plan_tables.quality_table(compute_quality_points("300M"))
    row = cells(table, "Q-K=V")
    assert row["cache_share"] == "1/2"
    assert row["perplexity"] == "5.27"
    assert row["change_percent"] == "+3.1 [2.9, 3.3]"
    assert row["standing"] == "dominated by GQA-4 and MQA"
    assert cells(table, "QKV")["standing"] == "frontier"


def test_serving_table_says_what_the_plan_says() -> None:
    """2.5 GiB a user: 2 x 20 layers x 1,024 channels x 2 bytes x 32,768 tokens."""
    row = cells(plan_tables.serving_table(make_plan()), "QKV *", "bf16")
    assert row["cache_bytes_per_user"] == "2.5 GiB"
    assert row["users_per_replica"] == "13"
    assert row["devices"] == "8"
    assert row["price_per_month"] == "16,000"
    assert row["change_percent"] == "baseline"
    assert row["standing"] == "frontier"


def test_a_context_beyond_that_of_the_model_is_marked() -> None:
    plan = make_plan()
    for most, mark in ((1024, " †"), (2**20, ""), (None, "")):
        changed = replace(plan, model=replace(plan.model, max_tokens=most))
        table = plan_tables.serving_table(changed)
        assert cells(table, "QKV *", "bf16")["longest_context"] == f"431,993{mark}"
        note = f"† marks more than the {most:,} tokens" if most else "of one replica."
        assert note in table.notes[1]


def test_training_table_has_every_variant_once() -> None:
    plan = make_plan(trains=True)
    table = plan_tables.training_table(plan)
    assert len(table.rows) == len(plan.answer.trained)
    assert cells(table, "MQA")["published_tokens_per_second"] == "448,000"
    assert "40 % of the peak matmul rate" in table.notes[0]
    macs = [cells(table, label)["macs_per_token"] for label in ("QKV *", "MQA")]
    assert macs == ["2.923 G", "2.805 G (−4.04 %)"]
