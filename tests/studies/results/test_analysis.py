"""The summary as a whole."""

import dataclasses
import random
from typing import Any

import pytest

from qkvary.papers.recomputation import published_tables
from qkvary.studies.results.analysis import summarise
from tests.conftest import Runner
from tests.studies.made_up import by_variant, make_record, make_records, make_setting, make_study

QKV = [0.91, 0.95, 0.90, 0.97, 0.93]
LOW = [0.81, 0.86, "failed", 0.85, 0.80]


def two_tasks() -> Any:
    return make_study(
        make_setting("reverse"),
        make_setting("sort", "sort"),
        variants=("QKV", "q,k=v"),
        published=published_tables("three-projections-table-2"),
    )


def test_the_summary_has_every_part() -> None:
    study = two_tasks()
    records = make_records(study, by_variant({"QKV": QKV, "Q-K=V": LOW}))
    logs = {records[0].run_key: [{"event": "train", "step": 1, "loss": 2.0, "seconds": 0.1}]}
    summary = summarise(study, records, curves=logs)
    assert (summary.study, summary.baseline) == ("made-up", "QKV")
    assert summary.variants == ("QKV", "Q-K=V")
    assert (summary.counts.planned, summary.counts.done, summary.counts.failed) == (20, 18, 2)
    assert len(summary.runs) == 20
    assert [table.name for table in summary.tables] == [
        "average of reverse, sort", "reverse", "sort",
    ]  # fmt: skip
    assert {chart.table for chart in summary.frontiers} == {t.name for t in summary.tables}
    assert len(summary.curves) == 1
    assert summary.published[0].cells
    assert summary.learning_rates == ()
    assert summary.environments == ((("qkvary", "0.1.0"), ("torch", "2.13.0")),)
    assert summary.training_seconds == pytest.approx(40.0)
    assert summary.total_seconds == pytest.approx(60.0)
    assert summary.started == "2026-01-02T03:04:05Z"
    assert summary.method.family == 3
    assert "Bonferroni's correction for 3 comparisons" in " ".join(summary.method.sentences)
    assert summary.table("sort").row("Q-K=V").counts.failed == 1
    with pytest.raises(KeyError, match="expected a table of the summary, got 'swap'; choices: "):
        summary.table("swap")


def test_the_order_of_records_changes_nothing() -> None:
    study = two_tasks()
    records = make_records(study, by_variant({"QKV": QKV, "Q-K=V": LOW}))
    shuffled = random.Random(3).sample(records, len(records))
    assert summarise(study, shuffled) == summarise(study, records)


def test_every_table_counts_every_planned_run() -> None:
    study = two_tasks()
    outcomes = by_variant({"QKV": [0.9, None, "diverged", 0.8, 0.7], "Q-K=V": LOW})
    summary = summarise(study, make_records(study, outcomes))
    for table in summary.tables:
        for row in table.rows:
            parts = (row.counts.done, row.counts.failed, row.counts.diverged, row.counts.missing)
            assert sum(parts) == row.counts.planned == 5 * len(table.settings)


def test_a_failed_run_that_knows_less_is_no_other_machine() -> None:
    study = make_study(seeds=(1, 2, 3))
    whole = {"cpu": "one", "torch": "2.13.0", "commit": None, "instructions": "AVX2"}
    known = {1: {"cpu": "one", "torch": "2.13.0", "commit": None}, 2: whole, 3: whole}
    records = [
        make_record(cell, "failed" if cell.seed == 1 else 0.5, environment=known[cell.seed])
        for cell in study.cells()
    ]
    summary = summarise(study, records)
    assert summary.environments == (
        (("cpu", "one"), ("torch", "2.13.0"), ("instructions", "AVX2")),
    )
    assert not any("machines" in text for text in summary.caveats)
    records[0] = dataclasses.replace(records[0], environment={"cpu": "another"})
    assert len(summarise(study, records).environments) == 2
    changed = dataclasses.replace(records[1], environment={**whole, "changed": "threads"})
    assert len(summarise(study, [changed, records[2]]).environments) == 2
    failed = make_record(study.cells()[0], "failed", environment=known[1])
    assert len(summarise(study, [failed, changed]).environments) == 1


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("qkvary.papers.tables", ("torch", "numpy", "scipy")),
        ("qkvary.studies.results.summary", ("torch", "numpy", "scipy")),
        ("qkvary.studies.results.analysis", ("torch",)),
    ],
)
def test_imports_stay_light(run_python: Runner, module: str, absent: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([name for name in {absent!r} if name in sys.modules])"
    done = run_python(["-c", code])
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
