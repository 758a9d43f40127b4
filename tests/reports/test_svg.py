import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from qkvary.reports import svg


def test_element_escapes_text_and_attributes() -> None:
    made = svg.element("text", "<b>&\x00", class_='"x', stroke_width=1.5, dropped=None)
    assert made == '<text class="&#34;x" stroke-width="1.5">&lt;b&gt;&amp;\ufffd</text>'


@pytest.mark.parametrize(
    ("value", "written"), [(1.0, "1"), (-0.001, "0"), (100.0, "100"), (2.346, "2.35")]
)
def test_numbers_are_short(value: float, written: str) -> None:
    assert svg.number(value) == written


@given(st.lists(st.tuples(st.floats(-999, 999), st.floats(-999, 999)), min_size=1, max_size=30))
def test_relative_moves_end_where_the_points_end(points: list[tuple[float, float]]) -> None:
    """Rounding to tenths never adds up."""
    data = svg.path_data(points)
    x = y = 0.0
    for move in re.split("[Ml]", data)[1:]:
        dx, dy = (float(part) for part in re.findall(r"-?(?:\d+\.?\d*|\.\d+)", move))
        x, y = x + dx, y + dy
    assert math.isclose(x, points[-1][0], abs_tol=0.06)
    assert math.isclose(y, points[-1][1], abs_tol=0.06)


def test_points_on_a_straight_line_are_left_out() -> None:
    assert svg.path_data([(0, 0), (1, 1), (1, 1), (3, 3), (4, 2)]) == "M0 0l3 3l1-1"
    assert svg.path_data([(0, 0), (2, 0), (5, 0), (4, 0)]) == "M0 0l5 0l-1 0"


def test_what_drawings_share_is_in_a_page_once() -> None:
    part = svg.element("rect", width=3)
    drawing = svg.Drawing(
        width=9,
        height=9,
        title="",
        description="",
        parts=(svg.Shared(parts=part, at=(1, 0)), svg.Shared(parts=part, at=(2, 5))),
    )
    held = dict[Markup, str]()
    first, second = (drawing.to_svg(name, held).partition("</desc>")[2] for name in ("a", "b"))
    assert first == (
        '<g transform="translate(1 0)"><g id="a-s0"><rect width="3"/></g></g>'
        '<use href="#a-s0" x="2" y="5"/></svg>'
    )
    assert second == '<use href="#a-s0" x="1"/><use href="#a-s0" x="2" y="5"/></svg>'
    moves = ("translate(1 0)", "translate(2 5)")
    assert drawing.inlined == tuple(svg.group([part], transform=move) for move in moves)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_linear_ticks_are_round_and_inside(low: float, width: float) -> None:
    high = low + width
    ticks = svg.linear_ticks(low, high, 5)
    slack = width * 1e-6 + abs(low) * 1e-9
    assert len(ticks) <= 7
    assert all(low - slack <= tick <= high + slack for tick in ticks)
    assert ticks == sorted(set(ticks))


@given(st.floats(1e-6, 1e9), st.floats(1.5, 1e6))
def test_log_ticks_are_few_and_inside(low: float, ratio: float) -> None:
    ticks = svg.log_ticks(low, low * ratio, 5)
    assert 1 <= len(ticks) <= 8
    assert all(low * 0.99 <= tick <= low * ratio * 1.01 for tick in ticks)


def test_binary_ticks_are_powers_of_two() -> None:
    assert svg.binary_ticks(100, 1100, 5) == [128, 256, 512, 1024]


def test_a_linear_axis_of_bytes_counts_in_a_power_of_two() -> None:
    scale = svg.Scale(low=1900, high=4200, start=0, end=100, binary=True)
    assert scale.ticks(5) == [2048, 2560, 3072, 3584, 4096]


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


def test_staircase_goes_across_before_it_goes_up() -> None:
    assert svg.staircase([(0, 9), (5, 3)], 20) == [(0, 9), (5, 9), (5, 3), (20, 3)]
    assert svg.staircase([], 20) == []


@pytest.mark.parametrize(
    ("high", "moved"), [(2.0, True), (2.2, False)], ids=["at the end", "before it"]
)
def test_the_last_value_of_an_axis_stays_inside(high: float, moved: bool) -> None:
    scale = svg.Scale(low=1.0, high=high, start=50.0, end=390.0)
    drawn = svg.x_axis(scale, 100.0, lambda value: f"{value:.1f} KiB", 1)
    last = re.findall(r'<text x="([\d.]+)" y="116" class="tick (\w+)">2.0 KiB<', drawn)
    place = "398" if moved else svg.number(scale(2.0))
    assert last == [(place, "end" if moved else "middle")]
