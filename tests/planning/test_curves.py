"""The curves of a plan agree with its counts wherever they can be compared."""

import pytest

from qkvary.arch.models import as_model
from qkvary.planning.curves import (
    SIZES,
    CacheCurves,
    compute_cache_curves,
    compute_quality_points,
)
from qkvary.planning.plans import Plan
from qkvary.planning.quality import Size, cache_bytes, quality_of
from tests.arch.synthetic_networks import synthetic_encoder
from tests.reports.plan_examples import make_plan

MODELS = ("300M", "llama-3.1-8b", "gemma-3-4b", "deepseek-v4-flash")


def cache_of(plan: Plan) -> CacheCurves:
    picture = compute_cache_curves(plan)
    assert picture is not None
    return picture


@pytest.mark.parametrize("name", MODELS)
def test_lines_meet_the_table_at_the_requested_context(name: str) -> None:
    plan = make_plan(name)
    picture = cache_of(plan)
    drawn = {name: dict(line.points)[32_768] for line in picture.curves for name in line.names}
    first = [row for row in plan.answer.rows if row.cache == plan.formats[0]]
    assert drawn == {
        row.name + (" *" if row.is_original else ""): row.plan.user_bytes for row in first
    }
    assert picture.cache == plan.formats[0]


@pytest.mark.parametrize("name", MODELS)
def test_lines_of_the_cache_never_fall_and_stand_in_order(name: str) -> None:
    picture = cache_of(make_plan(name))
    for line in picture.curves:
        assert [x for x, _ in line.points] == sorted({x for x, _ in line.points})
        values = [value for _, value in line.points]
        assert values == sorted(values)
        assert line.points[0][0] == picture.low
        assert line.points[-1][0] == picture.high
    ends = [line.points[-1][1] for line in picture.curves]
    assert ends == sorted(ends, reverse=True)


def test_a_window_bends_the_line() -> None:
    """Gemma 3 has five layers with a window of 1,024 for each without: full, they stop growing."""
    line = next(
        line for line in cache_of(make_plan("gemma-3-4b")).curves if "Q-GQA-4" in line.names
    )
    points = dict(line.points)
    before = (points[1024.0] - points[512.0]) / 512
    after = (points[4096.0] - points[2048.0]) / 2048
    assert after < before / 5
    assert {1023.0, 1024.0} <= set(points)


@pytest.mark.parametrize(
    ("context", "low", "high"),
    [(1, 16, 4096), (3, 16, 4096), (1024, 256, 4096), (32_768, 1024, 65_536)],
)
def test_the_axis_of_contexts_includes_the_requested_one(context: int, low: int, high: int) -> None:
    picture = cache_of(make_plan(context=context))
    assert (picture.low, picture.high) == (low, high)


def test_a_network_that_decodes_nothing_has_no_curves() -> None:
    plan = make_plan(as_model(synthetic_encoder()), trains=True)
    assert compute_cache_curves(plan) is None


# Variants that nothing dominates, and of each other all that do, best perplexity first.
EXPECTED: dict[Size, tuple[str, dict[str, str]]] = {
    "300M": (
        "QKV GQA-4 MQA Q-MQA",
        {
            "Q-K=V": "GQA-4 MQA",
            "Q=K-V": "QKV GQA-4 MQA Q-K=V Q-GQA-4 Q-MQA",
            "Q=K=V": "GQA-4 MQA Q-K=V Q-GQA-4 Q-MQA",
            "Q-GQA-4": "MQA",
        },
    ),
    "1.2B": ("QKV GQA-8 MQA Q-MQA", {"Q-K=V": "GQA-8 MQA", "Q-GQA-8": "MQA"}),
}


@pytest.mark.parametrize("size", SIZES)
def test_points_are_the_published_ones(size: Size) -> None:
    picture = compute_quality_points(size)
    frontier, dominated = EXPECTED[size]
    assert {point.variant for point in picture.points} == {*frontier.split(), *dominated}
    whole = cache_bytes("QKV", size)
    for point in picture.points:
        quality = quality_of(point.variant, size)
        assert quality is not None
        assert (point.change_percent, point.low, point.high) == (
            quality.change_percent,
            quality.low,
            quality.high,
        )
        assert point.share == cache_bytes(point.variant, size) / whole
        assert point.dominated_by == tuple(dominated.get(point.variant, "").split())
        assert point.status == ("dominated" if point.dominated_by else "frontier")
    shares = [point.share for point in picture.points]
    assert shares == sorted(shares, reverse=True)
