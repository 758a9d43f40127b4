import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.reports import svg


def test_element_escapes_text_and_attributes() -> None:
    made = svg.element("text", "<b>&\x00", class_='"x', stroke_width=1.5, dropped=None)
    assert made == '<text class="&#34;x" stroke-width="1.5">&lt;b&gt;&amp;\ufffd</text>'


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_linear_ticks_are_round_and_inside(low: float, width: float) -> None:
    high = low + width
    ticks = svg.linear_ticks(low, high, 5)
    slack = width * 1e-6 + abs(low) * 1e-9
    assert len(ticks) <= 7
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    assert ticks == sorted(set(ticks))


def test_scale_keeps_values_within_the_axis() -> None:
    scale = svg.Scale(low=0, high=10, start=50, end=0)
    assert [scale(value) for value in (-5, 0, 5, 10, 99)] == [50, 50, 25, 0, 0]
    log = svg.Scale(low=1, high=100, start=0, end=10, logarithmic=True)
    assert log(10) == pytest.approx(5)


@pytest.mark.parametrize(
    ("values", "logarithmic"),
    [
        ([], False),
        ([], True),
        ([3.0], False),
        ([0.0, 0.0], False),
        ([math.nan, 1, 2], False),
        ([0, 5.0], True),
    ],
)
def test_ranges_are_never_empty(values: list[float], logarithmic: bool) -> None:
    low, high = svg.padded(values, 0.1, logarithmic)
    assert low < high
    assert math.isfinite(low)
    assert math.isfinite(high)


@pytest.mark.parametrize("size", [300, 512, 1536])
def test_an_axis_of_bytes_has_ticks_without_a_power_of_two(size: int) -> None:
    low, high = svg.padded([size], 0.1, True)
    ticks = svg.Scale(low=low, high=high, start=0, end=1, logarithmic=True, binary=True).ticks()
    assert len(ticks) > 1
    assert size in ticks or low <= ticks[0] <= ticks[-1] <= high
