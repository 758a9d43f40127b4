import math

from timing.medians import LEVEL, Median, median_with_interval


def coverage(count: int, cut: int) -> float:
    """How often the order statistics ``cut`` from both ends enclose the median of any shape."""
    return 1 - 2 * sum(math.comb(count, below) for below in range(cut + 1)) / 2**count


def test_median_is_in_the_middle_of_its_interval() -> None:
    assert median_with_interval([3.0, 1.0, 2.0]) == Median(2.0, 1.0, 3.0)
    assert median_with_interval([5.0]) == Median(5.0, 5.0, 5.0)
    assert median_with_interval([1.0, 2.0, 3.0, 10.0]).value == 2.5


def test_interval_is_the_narrowest_with_its_level() -> None:
    for count in range(1, 40):
        found = median_with_interval([float(number) for number in range(count)])
        cut = int(found.low)
        assert found.high == count - 1 - cut
        assert cut == 0 if count < 6 else coverage(count, cut) >= LEVEL
        assert count < 6 or coverage(count, cut + 1) < LEVEL
