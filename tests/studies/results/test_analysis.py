"""The summary as a whole."""

import dataclasses
import random
from typing import Any

from qkvary.papers.recomputation import published_tables
from qkvary.studies.results.analysis import summarise
from tests.studies.made_up import (
    by_variant,
    gap_of,
    make_record,
    make_records,
    make_setting,
    make_study,
)

QKV = [0.91, 0.95, 0.90, 0.97, 0.93]
LOW = [0.81, 0.86, "failed", 0.85, 0.80]


def two_tasks() -> Any:
    return make_study(
        make_setting("reverse"),
        make_setting("sort", "sort"),
        variants=("QKV", "q,k=v"),
        published=published_tables("three-projections-table-2"),
    )


def test_the_order_of_records_changes_nothing() -> None:
    study = two_tasks()
    records = make_records(study, by_variant({"QKV": QKV, "Q-K=V": LOW}))
    shuffled = random.Random(3).sample(records, len(records))
    assert summarise(study, shuffled) == summarise(study, records)


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


def test_runs_that_did_not_finish_are_the_first_caveat() -> None:
    study = make_study()
    outcomes = by_variant({"QKV": QKV, "Q-K=V": ["failed", "diverged", None, 0.9, 0.8]})
    summary = summarise(study, make_records(study, outcomes))
    assert "7 of 10 runs finished (1 failed, 1 diverged, 1 missing)" in summary.caveats[0]
    difference = gap_of(summary.tables[0], "Q-K=V")
    assert (difference.pairs, difference.pairs_planned) == (2, 5)
    problems = [run for run in summary.runs if run.state in ("failed", "diverged")]
    assert [run.message for run in problems] == ["the run failed", "the run diverged"]
