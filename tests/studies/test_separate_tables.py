"""Settings that ask something else than the others: some variants, other sizes, another score."""

import dataclasses
import re
from typing import Any

import pytest
from scipy import stats

from qkvary.arch.labels import parse_variant
from qkvary.costs.equal_parameters import match_parameters
from qkvary.costs.parameters import network_parameters
from qkvary.reports import study_tables
from qkvary.studies.records import Record
from qkvary.studies.results.analysis import summarise
from qkvary.studies.results.summary import Summary
from qkvary.studies.study import CrossSettingContrast, Setting, Study
from tests.studies.made_up import gap_of, make_record, make_setting, make_study

LABELS = ("QKV", "Q-K=V", "I-K=V", "MQA")
CONTRAST = CrossSettingContrast(
    variant="q,k=v", setting="equal", reference="MQA", reference_setting="reverse"
)


def separate(name: str, **more: Any) -> Setting:
    return dataclasses.replace(make_setting("reverse"), name=name, **{"table": name, **more})


def three_tables(
    *, contrast: CrossSettingContrast = CONTRAST, limits: tuple[str, ...] = (), **more: Any
) -> Study:
    return make_study(
        dataclasses.replace(make_setting("reverse"), limits=limits),
        separate("equal", variants=("Q-K=V", "QKV"), equal_parameters=True),
        separate("seconds", metric="second", variants=("MQA", "Q-K=V")),
        variants=LABELS,
        contrasts=(("Q-K=V", "MQA"), contrast),
        **more,
    )


def value_of(setting: str, label: str, seed: int) -> float:
    sizes = {"QKV": 0.8, "Q-K=V": 0.7, "I-K=V": 0.6, "MQA": 0.75}
    wobble = {1: 0.011, 2: -0.013, 3: 0.002, 4: 0.017, 5: -0.007}[seed]
    return (
        sizes[label]
        + (0.05 if setting == "equal" and label != "QKV" else 0.0)
        + wobble * len(label)
    )


def records_of(study: Study) -> list[Record]:
    found: dict[str, Record] = {}
    for cell in study.cells():
        value = value_of(cell.setting, cell.variant, cell.seed)
        record = make_record(cell, value)
        metrics = {**record.metrics, "test_second": value / 2}
        found.setdefault(cell.run_key, dataclasses.replace(record, metrics=metrics))
    return list(found.values())


@pytest.fixture(name="summary", scope="module")
def summarised() -> Summary:
    study = three_tables(limits=("Only a test.",))
    return summarise(study, records_of(study))


def test_a_limited_setting_has_the_runs_of_its_variants_which_may_be_those_of_another() -> None:
    keys = {(cell.setting, cell.variant): cell.run_key for cell in three_tables(seeds=(1,)).cells()}
    assert list(keys) == [
        *(("reverse", label) for label in LABELS),
        ("equal", "QKV"),
        ("equal", "Q-K=V"),
        ("seconds", "Q-K=V"),
        ("seconds", "MQA"),
    ]
    assert keys["reverse", "QKV"] == keys["equal", "QKV"]
    assert keys["reverse", "MQA"] == keys["seconds", "MQA"]
    assert keys["reverse", "Q-K=V"] != keys["equal", "Q-K=V"]
    assert len(set(keys.values())) == 5


@pytest.mark.parametrize("label", ["Q-K=V", "MQA", "QKV", "Q[map]=K-V"])
@pytest.mark.parametrize(("width", "activation"), [(20, "gelu"), (1, "gelu"), (37, "swiglu")])
def test_no_other_width_comes_nearer(label: str, width: int, activation: Any) -> None:
    network = make_setting("reverse").network
    block = dataclasses.replace(network.block, d_ff=width, activation=activation)
    network = dataclasses.replace(network, block=block)
    found = match_parameters(network.with_variant(parse_variant(label)), network)
    wanted = network_parameters(network).total

    def off(d_ff: int) -> int:
        other = dataclasses.replace(found, block=dataclasses.replace(found.block, d_ff=d_ff))
        return abs(network_parameters(other).total - wanted)

    assert found.layers[0].variant == parse_variant(label)
    assert found.block.d_ff == min(range(1, 200), key=off)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"setting": "none"}, "expected a setting of the study in a contrast, got 'none';"),
        ({"variant": "I-K=V"}, "expected a variant of the setting 'equal' in a contrast, got"),
        ({"reference": "GQA-2"}, "expected a variant of the setting 'reverse' in a contrast, got"),
        ({"reference_setting": "seconds"}, "same metric on both sides of a contrast, got accuracy"),
    ],
)
def test_invalid_contrasts_across_settings_are_refused(
    fields: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        three_tables(contrast=dataclasses.replace(CONTRAST, **fields))


def test_every_table_has_the_rows_that_it_is_about(summary: Summary) -> None:
    assert [(table.name, table.kind) for table in summary.tables] == [
        ("reverse", "task"),
        ("equal", "task"),
        ("seconds", "task"),
    ]
    rows = {table.name: [row.variant for row in table.rows] for table in summary.tables}
    assert rows == {"reverse": list(LABELS), "equal": ["QKV", "Q-K=V"], "seconds": ["Q-K=V", "MQA"]}
    assert summary.method.family == 4
    gap = gap_of(summary.table("equal"), "Q-K=V")
    assert gap.mean == pytest.approx(-0.05 + 0.002 * 2)
    assert {row.difference for row in summary.table("seconds").rows} == {None}


def test_a_run_in_two_settings_counts_once(summary: Summary) -> None:
    assert (summary.counts.planned, summary.counts.done, len(summary.runs)) == (25, 25, 40)
    assert summary.training_seconds == pytest.approx(50.0)
    assert study_tables.variant_counts(summary, "QKV").planned == 5


def test_a_contrast_across_settings_is_the_paired_interval_over_settings(summary: Summary) -> None:
    planned, crossed = summary.contrasts
    assert [row.table for row in planned.rows] == ["reverse", "seconds"]
    assert (crossed.variant, crossed.reference) == ("Q-K=V (equal)", "MQA (reverse)")
    (row,) = crossed.rows
    ours = [value_of("equal", "Q-K=V", seed) for seed in range(1, 6)]
    theirs = [value_of("reverse", "MQA", seed) for seed in range(1, 6)]
    interval = stats.ttest_rel(ours, theirs).confidence_interval(1 - 0.05 / 3)
    gap = row.difference
    assert (row.table, gap.comparisons, gap.pairs, gap.pairs_planned) == ("equal", 3, 5, 5)
    assert (gap.low, gap.high) == pytest.approx((interval.low, interval.high))
    assert crossed.answer.startswith("Q-K=V (equal) against MQA (reverse), which has the same")
