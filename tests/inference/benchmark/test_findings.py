import dataclasses

import pytest

from qkvary.inference.benchmark.findings import find_answers, find_caveats, judge
from qkvary.inference.benchmark.medians import Median
from qkvary.inference.benchmark.records import DecodeRecord, SpeedRow, Times
from tests.inference.benchmark.made_up import make_record

MIB = 2**20


def slower(record: DecodeRecord, label: str, times: float) -> DecodeRecord:
    """The record with another time of one variant's cache."""

    def slow(row: SpeedRow) -> SpeedRow:
        if (row.case.variant, row.runner) != (label, "cache"):
            return row
        own = {
            field.name: tuple(times * one for one in getattr(row.times, field.name))
            for field in dataclasses.fields(row.times)
        }
        return dataclasses.replace(row, times=Times(**own))

    return dataclasses.replace(record, speed=tuple(map(slow, record.speed)))


def test_answers_come_from_the_figures() -> None:
    answers = find_answers(make_record())
    where = "1 answer of 256 tokens, float32"
    assert answers[0] == (
        f"Times as fast as running the prefix again, {where}: QKV 12 [12, 12], Q-K=V 15 [15, 15], "
        "MQA 24 [24, 24]; the goal of 9 is met."
    )
    assert answers[1].startswith(f"Times as fast as transformers (generate), {where}: QKV 2.5 [")
    assert answers[1].endswith("the goal of 2 is met.")
    assert answers[2].startswith("Times as fast as transformers (its static cache)")
    assert "goal" not in answers[2]
    assert answers[3] == (
        "Q-K=V at 4,096 tokens: storing only what is needed instead of K and V lowers the peak by "
        "16.0 MiB; the formula gives 16.0 (+0.00 %, within 2 %)."
    )
    assert answers[4].startswith("Peaks of the other variants differ from QKV's as their caches do")
    assert "the poster says -6.5 to -6.9 % (1.2B on an A100)" in answers[5]
    assert answers[5].endswith(
        "In the poster's network, removing the projection alone gives -7.6 %, before anything is "
        "cached, which is more than was measured."
    )
    assert "ours +25.0 % at 1 answer of 256 tokens, float32" in answers[6]


def test_a_goal_that_only_some_meet_is_judged_for_each() -> None:
    answers = find_answers(slower(make_record(), "QKV", 2.0))
    assert answers[0].endswith("; the goal of 9: QKV missed, Q-K=V met, MQA met.")


def test_other_cases_have_no_goal() -> None:
    record = make_record()
    settings = dataclasses.replace(record.question.settings, threads=2)
    shared = dataclasses.replace(
        record, question=dataclasses.replace(record.question, settings=settings)
    )
    assert "goal" not in find_answers(shared)[0]
    assert any(caveat.startswith("Ratios use wall-clock time") for caveat in find_caveats(shared))


def test_a_peak_that_misses_its_formula_is_reported() -> None:
    record = make_record()
    rows = tuple(
        dataclasses.replace(row, peak_bytes=row.peak_bytes - 2 * MIB)
        if row.cache is not None and row.cache.layout == "split"
        else row
        for row in record.memory
    )
    answers = find_answers(dataclasses.replace(record, memory=rows))
    assert "the formula gives 16.0 (-12.50 %, not within 2 %)" in answers[3]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Median(3.0, 2.0, 4.0), "met"),
        (Median(3.0, 1.9, 4.0), "undecided"),
        (Median(1.5, 1.0, 2.0), "undecided"),
        (Median(1.5, 1.0, 1.9), "missed"),
    ],
)
def test_a_goal_is_judged_by_the_whole_interval(found: Median, said: str) -> None:
    assert judge(found, 2.0) == said


def test_caveats_report_equal_and_different_tokens() -> None:
    record = make_record()
    assert "In float32 all runners gave the same tokens in every case." in find_caveats(record)
    row = dataclasses.replace(record.speed[2], equal_tokens=17)
    other = dataclasses.replace(record, speed=(*record.speed[:2], row, *record.speed[3:]))
    said = " ".join(find_caveats(other))
    assert "all runners" not in said
    assert (
        "In float32 1 of 12 answers differ from the cache's after some tokens, the first (QKV, "
        "transformers, 256 tokens) after 17 of 240: rounding decides"
    ) in said


def test_caveats_include_the_notes() -> None:
    record = dataclasses.replace(make_record(stock=False, memory=False), notes=("No peer.",))
    caveats = find_caveats(record)
    assert caveats[-1] == "No peer."
    assert not any("transformers" in answer for answer in find_answers(record))
    assert not any("peak by" in answer for answer in find_answers(record))
    assert any("weights are random" in caveat for caveat in caveats)
    own = dataclasses.replace(record.question, checkpoint="model")
    stored = dataclasses.replace(record, question=own)
    assert not any("weights are random" in caveat for caveat in find_caveats(stored))


def test_several_caches_are_distinguished() -> None:
    record = make_record()
    question = dataclasses.replace(record.question, caches=record.question.caches * 2)
    answers = find_answers(dataclasses.replace(record, question=question))
    assert "QKV (rotated, preallocated, auto) 12 [12, 12]" in answers[0]
