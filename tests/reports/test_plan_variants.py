"""The tables of variants that a plan's page and the terminal share."""

import dataclasses

import pytest

from qkvary.costs.exact_savings import find_savings
from qkvary.costs.formats import parse_format
from qkvary.planning.plans import ServingAnswer
from qkvary.reports import plan_variants
from qkvary.reports.tables import Table
from tests.reports.plan_examples import make_plan


def serving() -> Table:
    plan = make_plan()
    assert isinstance(plan.answer, ServingAnswer)
    return plan_variants.serving_table(plan, plan.answer, "variants")


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


def test_serving_table_says_what_the_plan_says() -> None:
    """2.5 GiB a user: 2 x 20 layers x 1,024 channels x 2 bytes x 32,768 tokens."""
    row = cells(serving(), "QKV *", "bf16")
    assert row["cache_bytes_per_user"] == "2.5 GiB"
    assert row["users_per_device"] == "13"
    assert row["devices"] == "8"
    assert row["price_per_month"] == "16,000"
    assert row["change_percent"] == "baseline"
    assert row["standing"] == "frontier"


def test_dominated_rows_name_what_dominates_them() -> None:
    table = serving()
    row = cells(table, "Q-K=V", "bf16")
    assert row["change_percent"] == "+3.1 [2.9, 3.3]"
    assert row["standing"] == "dominated by GQA-4 and MQA"
    assert cells(table, "QKV, layer input *", "int8")["standing"] == "same function"
    assert "Lossy, scales counted: int8" in table.notes[-1]


def test_narrow_intervals_have_more_decimals() -> None:
    plan = make_plan("llama-3.1-8b")
    assert isinstance(plan.answer, ServingAnswer)
    table = plan_variants.serving_table(plan, plan.answer, "variants")
    assert cells(table, "MQA", "bf16")["change_percent"] == "+1.06 [1.04, 1.08]"


def test_what_does_not_fit_is_none_and_warns() -> None:
    plan = make_plan("llama-3.1-405b", context=2**30)
    assert isinstance(plan.answer, ServingAnswer)
    table = plan_variants.serving_table(plan, plan.answer, "variants")
    row = next(row for row in table.rows if row[0].text == "QKV")
    texts = {column.key: cell for column, cell in zip(table.columns, row, strict=True)}
    assert texts["devices"].text == texts["users_per_device"].text == "none"
    assert texts["devices"].tone == "warn"


def test_training_table_has_every_variant_once() -> None:
    plan = make_plan(trains=True)
    table = plan_variants.variants_table(plan, "v")
    assert len(table.rows) == len(plan.answer.rows)
    assert cells(table, "MQA")["published_tokens_per_second"] == "448,000"
    assert "at 40 % of the matrix rate" in table.notes[0]
    macs = [cells(table, label)["macs_per_token"] for label in ("QKV *", "MQA")]
    assert macs == ["2.923 G", "2.805 G (−4.04 %)"]


def test_a_plan_of_training_says_how() -> None:
    plan = dataclasses.replace(make_plan(trains=True), regime=None)
    with pytest.raises(ValueError, match="expected a plan of training with its regime, got none"):
        plan_variants.variants_table(plan, "v")


def test_savings_say_how_sure_they_are() -> None:
    report = find_savings(make_plan().model, context=32_768, stored_as=parse_format("bf16"))
    written = [
        plan_variants.describe_saving(saving, 20, decimal=False) for saving in report.savings
    ]
    assert written[0][0] == "exact: layer input, all 20 layers: 1.25 GiB a user (−50.0 %)"
    assert written[1][0].startswith("possible, needs the weights: keys alone, all 20 layers")
    gemma = make_plan("gemma-4-31b").answer
    assert isinstance(gemma, ServingAnswer)
    part = plan_variants.describe_saving(gemma.savings.savings[0], 60, decimal=True)[0]
    assert "10 of 60 layers" in part
    assert "of those layers)" in part
    assert " GB a user" in part
