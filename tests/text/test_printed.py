"""The precision of published numbers, and the kinds of rounding."""

import pytest

from qkvary.papers.tables import load_published
from qkvary.studies.published_tables import PublishedFigure
from qkvary.text.printed import (
    printed_interval,
    printed_step,
    rounds_to,
    rounds_twice_to,
    truncates_to,
)


def figure(table: str, row: str, column: str) -> PublishedFigure:
    return load_published(table).figure(row, column)


@pytest.mark.parametrize(
    ("table", "row", "column", "step"),
    [
        ("three-projections-table-4", "MQA", "change", 0.1),
        ("three-projections-table-4", "MQA", "validation_perplexity", 0.01),
        ("three-projections-table-4", "MQA", "tokens_per_second", 1000),
        ("three-projections-table-10", "GQA-8", "perplexity", 0.001),
        ("three-projections-table-10", "QKV", "cache", 1),
        ("three-projections-table-5", "Total", "three", 0.01),
        ("three-projections-table-4", "Q=K-V", "cache_reduction", 1),
    ],
)
def test_step_is_the_unit_of_the_last_digit(table: str, row: str, column: str, step: float) -> None:
    assert printed_step(figure(table, row, column)) == pytest.approx(step)


def test_interval_holds_all_numbers_printed_alike() -> None:
    low, high = printed_interval(figure("three-projections-table-10", "GQA-8", "perplexity"))
    assert (low, high) == pytest.approx((5.0295, 5.0305))
    with pytest.raises(ValueError, match=r"expected a printed number, got '3nd\^2'"):
        printed_interval(figure("three-projections-table-1", "QKV", "computation"))


@pytest.mark.parametrize(
    ("number", "printed", "step", "once", "cut", "twice"),
    [
        (32.349373, 32.3, 0.1, True, True, True),
        (32.349373, 32.4, 0.1, False, False, True),
        (53.437239, 53.5, 0.1, False, False, False),
        (0.7828, 0.7, 0.1, False, True, False),
        (-0.7828, -0.7, 0.1, False, True, False),
        (87.5, 88, 1, True, False, True),
        (87.5, 87, 1, True, True, False),
        (0.3, 0.3, 0.1, True, True, True),
        (7, 7, 1, True, True, True),
    ],
)
def test_roundings(
    number: float, printed: float, step: float, once: bool, cut: bool, twice: bool
) -> None:
    found = (
        rounds_to(number, printed, step),
        truncates_to(number, printed, step),
        rounds_twice_to(number, printed, step),
    )
    assert found == (once, cut, twice)
