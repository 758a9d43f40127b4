import pytest

from decoding.comparisons import read_speeds
from tests.benchmarks.made_up import FASTER, SECONDS, TOKENS, make_record


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
            assert (speed.over_prefix, speed.over_stock) == (None, {})
            continue
        ratios = {"prefix": speed.over_prefix, **speed.over_stock}
        assert ratios.keys() == SECONDS.keys() - {"cache"}
        for runner, ratio in ratios.items():
            wanted = FASTER[speed.row.case.variant] * SECONDS[runner] / SECONDS["cache"]
            assert [ratio.value, ratio.low, ratio.high] == pytest.approx([wanted] * 3)
