"""Which tables a study has, and their rows."""

import dataclasses
from collections.abc import Callable

import pytest
from scipy import stats

from qkvary.studies.records import Record
from qkvary.studies.results.observations import observe
from qkvary.studies.results.result_tables import build_tables, compare_pairwise
from qkvary.studies.results.summary import ResultTable
from qkvary.studies.results.table_inputs import collect_inputs, specify_tables
from qkvary.studies.study import Cell, Study
from tests.studies.made_up import (
    by_variant,
    gap_of,
    make_record,
    make_records,
    make_setting,
    make_study,
)


def tables_of(study: Study, records: list[Record]) -> dict[str, ResultTable]:
    observations = observe(study, records)
    plans = specify_tables(study, observations)
    tables = build_tables(collect_inputs(study, observations), plans)
    return {table.name: table for table in tables}


QKV = [0.91, 0.95, 0.90, 0.97, 0.93]
SHARED = [0.81, 0.86, 0.83, 0.85, 0.80]


def test_a_row_is_the_mean_and_spread_of_its_runs() -> None:
    study = make_study()
    tables = tables_of(study, make_records(study, by_variant({"QKV": QKV, "Q-K=V": SHARED})))
    row = tables["reverse"].row("Q-K=V")
    assert row.mean == pytest.approx(0.83)
    assert row.std_seeds == pytest.approx(stats.tstd(SHARED))
    assert row.std_settings is None
    gap = gap_of(tables["reverse"], "Q-K=V")
    reference = stats.ttest_rel(SHARED, QKV).confidence_interval(0.95)
    assert (gap.low, gap.high) == pytest.approx((reference.low, reference.high))
    assert gap.verdict == "worse"
    assert tables["reverse"].row("QKV").difference is None
    assert (row.training_seconds, row.steps_per_second) == (2.0, 250.0)
    assert row.learning_rates == (1e-3,)
    assert row.costs is not None
    assert (row.costs.parameters_total, row.costs.cache_bytes_per_token) == (1_000, None)


def test_a_state_that_does_not_grow_is_divided_by_the_tokens_of_a_sequence() -> None:
    study = make_study()
    caches = {"QKV": (12, 600), "Q-K=V": (0, 600)}
    records = [
        dataclasses.replace(
            record,
            costs={
                **record.costs,
                "length": 50,
                "cache_bytes_per_token": caches[record.variant][0],
                "cache_bytes_per_sequence": caches[record.variant][1],
            },
        )
        for record in make_records(study, by_variant({"QKV": QKV, "Q-K=V": SHARED}))
    ]
    table = tables_of(study, records)["reverse"]
    found = [table.row(label).costs for label in caches]
    assert [cost.cache_bytes_per_token for cost in found if cost is not None] == [12, 12]


def test_tasks_with_different_metrics_are_not_averaged() -> None:
    study = make_study(make_setting("reverse"), make_setting("sort", "sort"))
    records = [
        make_record(cell, 0.5)
        if cell.setting == "sort"
        else make_record(
            cell, 0.5, metric="test_loss", higher_is_better=False, metrics={"test_loss": 2.0}
        )
        for cell in study.cells()
    ]
    tables = tables_of(study, records)
    assert list(tables) == ["reverse", "sort"]
    assert not tables["reverse"].higher_is_better


def with_steps(study: Study, steps: Callable[[Cell], int | str | None]) -> list[Record]:
    """Records with steps until the task was solved, or with the status of a run that has none."""
    records: list[Record] = []
    for cell in study.cells():
        found = steps(cell)
        record = make_record(cell, found if isinstance(found, str) else 0.9)
        solved = None if isinstance(found, str) else found
        metrics = {**record.metrics, "steps_to_solve": solved}
        records.append(dataclasses.replace(record, metrics=metrics))
    return records


def difference_of_means(table: ResultTable) -> float:
    ours, theirs = table.row("Q-K=V").mean, table.row("QKV").mean
    assert ours is not None
    assert theirs is not None
    return ours - theirs


@pytest.mark.parametrize("seeds", [(1,), (1, 2), (1, 2, 3, 4, 5)])
def test_the_difference_is_that_of_the_printed_means(seeds: tuple[int, ...]) -> None:
    """For any units, and any number of settings of a task."""
    lengths = (5, 7, 11, 13, 17)
    settings = [make_setting(f"r{length}", length=length) for length in lengths]
    study = make_study(*settings, make_setting("sort", "sort"), seeds=seeds)
    tables = tables_of(
        study,
        make_records(
            study,
            lambda c: (
                0.9
                if c.variant == "QKV"
                else 0.5 + 0.02 * c.seed + 0.01 * len(c.setting) * (1 + 2 * (c.setting == "r5"))
            ),
        ),
    )
    for name, unit in (
        ("average of reverse, sort", "seed" if len(seeds) == 5 else "setting"),
        ("reverse", "seed" if len(seeds) == 5 else "setting"),
        ("sort", "seed"),
    ):
        difference = gap_of(tables[name], "Q-K=V")
        assert difference.mean == pytest.approx(difference_of_means(tables[name]))
        assert difference.unit == unit


def test_steps_of_several_tasks_are_averaged_as_their_difference_is() -> None:
    """Settings of two tasks, in their own table: two of one, one of the other."""
    names = ("reverse", "reverse", "sort")
    settings = [
        dataclasses.replace(make_setting(f"s{index}", name, length=7 + index), table="own")
        for index, name in enumerate(names)
    ]
    study = make_study(*settings)
    steps = {"s0": 100, "s1": 150, "s2": 400}
    records = with_steps(
        study, lambda cell: 50 if cell.variant == "QKV" else steps[cell.setting] + cell.seed
    )
    table = tables_of(study, records)["own"]
    ours, theirs = table.row("Q-K=V").solving, table.row("QKV").solving
    assert ours is not None
    assert theirs is not None
    assert ours.difference is not None
    assert (ours.restricted_mean_steps, theirs.restricted_mean_steps) == (265.5, 50.0)
    assert ours.difference.mean == pytest.approx(215.5)


def test_a_mean_over_settings_that_lack_results_is_not_given() -> None:
    """Else a variant that fails in the hard setting would look better than one that does not."""
    study = make_study(make_setting("easy"), make_setting("hard", length=11), seeds=(1, 2))
    tables = tables_of(
        study,
        make_records(
            study,
            lambda c: (
                "diverged"
                if (c.setting, c.variant) == ("hard", "Q-K=V")
                else {"easy": 0.9, "hard": 0.3}[c.setting]
            ),
        ),
    )
    row = tables["reverse"].row("Q-K=V")
    assert row.mean is None
    assert row.std_settings is None
    assert (row.counts.done, row.counts.diverged) == (2, 2)
    assert tables["easy"].row("Q-K=V").mean == pytest.approx(0.9)
    assert tables["hard"].row("Q-K=V").mean is None


def test_steps_to_solve_count_unsolved_and_diverged_runs_at_the_horizon() -> None:
    study = make_study()
    steps = {"QKV": [100, 150, 100, 150, 100], "Q-K=V": [400, None, "diverged", "failed", 450]}
    records = with_steps(study, lambda cell: steps[cell.variant][cell.seed - 1])
    row = tables_of(study, records)["reverse"].row("Q-K=V")
    solving = row.solving
    assert solving is not None
    assert (solving.threshold, solving.horizon) == (0.99, 500)
    assert (solving.runs, solving.solved, solving.median_steps) == (4, 2, None)
    assert solving.restricted_mean_steps == pytest.approx((400 + 500 + 500 + 450) / 4)
    assert solving.difference is not None
    assert solving.difference.mean == pytest.approx((300 + 350 + 400 + 350) / 4)
    assert solving.difference.verdict == "worse"
    assert solving.difference.sentence.startswith("supported: later by 350 steps [")
    assert solving.difference.sentence.endswith(", from 4 of 5 pairs")
    assert solving.p_sign == pytest.approx(2 / 16)
    low, high = solving.proportion_low or 0, solving.proportion_high or 0
    assert 0.1 < low < 0.5 < high < 0.9


def test_duels_are_symmetric_and_corrected_for_all_pairs() -> None:
    study = make_study(variants=("QKV", "Q-K=V", "MQA"))
    records = make_records(
        study, by_variant({"QKV": QKV, "Q-K=V": SHARED, "MQA": [x - 0.3 for x in QKV]})
    )
    observations = observe(study, records)
    inputs = collect_inputs(study, observations)
    (table,) = build_tables(inputs, specify_tables(study, observations))
    pairwise = compare_pairwise(inputs, table)
    assert len(pairwise) == 6
    assert {difference.comparisons for difference in pairwise.values()} == {3}
    assert pairwise["QKV", "Q-K=V"].verdict == "better"
    assert pairwise["Q-K=V", "QKV"].verdict == "worse"
    assert pairwise["Q-K=V", "QKV"].mean == pytest.approx(-(pairwise["QKV", "Q-K=V"].mean or 0))
