import dataclasses

import pytest

from decoding.comparisons import (
    compare_memory,
    read_speeds,
    uses_wall_clock,
)
from decoding.records import DecodeRecord
from tests.benchmarks.made_up import (
    FASTER,
    LONG,
    SECONDS,
    TOKENS,
    formula_bytes,
    make_record,
)

MIB = 2**20


def change_settings(record: DecodeRecord, **changes: object) -> DecodeRecord:
    settings = dataclasses.replace(record.question.settings, **changes)
    return dataclasses.replace(
        record, question=dataclasses.replace(record.question, settings=settings)
    )


def test_rates_follow_from_times() -> None:
    ours = read_speeds(make_record())[0]
    # Of seven rounds four are quick.
    assert ours.first_seconds.value == pytest.approx(SECONDS["cache"] / 100)
    step = SECONDS["cache"] * 0.99 / (TOKENS - 1)
    assert ours.token_seconds.value == pytest.approx(step)
    assert ours.token_seconds.high == pytest.approx(1.1 * step)
    assert ours.tokens_per_second.value == pytest.approx(TOKENS / SECONDS["cache"])
    assert ours.tokens_per_second.low == pytest.approx(TOKENS / SECONDS["cache"] / 1.1)
    assert ours.read_bytes_per_second is not None
    assert ours.read_bytes_per_second.value == pytest.approx(12e6 / step)
    assert ours.share_of_stream == pytest.approx(12e6 / step / 16e9)


def test_ratios_are_taken_within_rounds_and_belong_to_the_cache() -> None:
    for speed in read_speeds(make_record()):
        if speed.row.runner != "cache":
            assert speed.over_prefix is None
            assert speed.over_stock == {}
            continue
        faster = FASTER[speed.row.case.variant]
        assert speed.over_prefix is not None
        for ratio, runner in (
            (speed.over_prefix, "prefix"),
            *((ratio, runner) for runner, ratio in speed.over_stock.items()),
        ):
            wanted = faster * SECONDS[runner] / SECONDS["cache"]
            assert [ratio.value, ratio.low, ratio.high] == pytest.approx([wanted] * 3)


def test_ratios_use_cpu_time_unless_work_is_parallel() -> None:
    record = make_record()
    row = record.speed[0]
    slow = dataclasses.replace(row.times, cpu_seconds=tuple(2 * one for one in row.times.seconds))
    rows = (dataclasses.replace(row, times=slow), *record.speed[1:])
    record = dataclasses.replace(record, speed=rows)
    assert not uses_wall_clock(record)
    alone = read_speeds(record)[0].over_prefix
    shared = read_speeds(change_settings(record, threads=2))[0].over_prefix
    assert alone is not None
    assert shared is not None
    assert shared.value == pytest.approx(2 * alone.value)
    assert uses_wall_clock(change_settings(record, device="cuda"))


def test_without_transformers_there_is_nothing_to_compare_with() -> None:
    speeds = read_speeds(make_record(stock=False))
    assert {speed.row.runner for speed in speeds} == {"cache", "prefix"}
    assert all(speed.over_stock == {} for speed in speeds)


def test_peaks_differ_as_caches_do() -> None:
    record = make_record()
    gaps = compare_memory(record)
    found = [
        (gap.more.case.variant, gap.less.case.variant, gap.formula_bytes, gap.error) for gap in gaps
    ]
    single = formula_bytes("Q-K=V", "rotated", LONG)
    assert found == [
        ("Q-K=V", "Q-K=V", single, 0.0),
        ("QKV", "Q-K=V", single, 0.0),
        ("QKV", "MQA", 3 * single // 2, 0.0),
    ]
    assert all(gap.more.case.context == LONG for gap in gaps)


def test_an_error_is_a_share_of_the_formula() -> None:
    record = make_record()
    rows = [
        dataclasses.replace(row, peak_bytes=row.peak_bytes - MIB)
        if row.cache is not None and row.cache.layout == "split"
        else row
        for row in record.memory
    ]
    (gap, *_) = compare_memory(dataclasses.replace(record, memory=tuple(rows)))
    single = formula_bytes("Q-K=V", "rotated", LONG)
    assert gap.measured_bytes == single - MIB
    assert gap.error == pytest.approx(-MIB / single)
