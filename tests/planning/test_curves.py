"""The curves of a plan agree with its counts wherever they can be compared."""

import dataclasses
import itertools
import math

import pytest

from qkvary.arch.families.sizes import load_size
from qkvary.costs.devices import Device
from qkvary.costs.serving import plan_serving
from qkvary.planning.curves import (
    SIZES,
    CacheCurves,
    UserCurves,
    compute_cache_curves,
    compute_quality_points,
    compute_user_curves,
    estimate_note,
    shared_caveats,
)
from qkvary.planning.plans import Plan, ServingAnswer
from qkvary.planning.quality import Size, frontier_positions, quality_of
from tests.reports.plan_examples import make_plan

MODELS = ("300M", "llama-3.1-8b", "gemma-3-4b", "deepseek-v4-flash")


def cache_of(plan: Plan) -> CacheCurves:
    picture = compute_cache_curves(plan)
    assert picture is not None
    return picture


def users_of(plan: Plan) -> UserCurves:
    picture = compute_user_curves(plan)
    assert picture is not None
    return picture


@pytest.mark.parametrize("name", MODELS)
def test_lines_meet_the_table_at_the_requested_context(name: str) -> None:
    plan = make_plan(name)
    picture = cache_of(plan)
    drawn = {name: dict(line.points)[32_768] for line in picture.curves for name in line.names}
    assert isinstance(plan.answer, ServingAnswer)
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


def test_rows_that_keep_the_same_share_a_line() -> None:
    lines = cache_of(make_plan()).curves
    assert ("QKV, layer input *", "Q-K=V") in [line.names for line in lines]
    rows = make_plan().candidates.rows
    assert sorted(name for line in lines for name in line.names) == sorted(
        row.name + (" *" if row.is_original else "") for row in rows
    )


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
    assert picture.max_tokens == 2048


def test_an_endless_context_keeps_the_axis_short() -> None:
    picture = cache_of(make_plan(context=2**60))
    assert (picture.low, picture.high) == (2**37, 2**61)
    assert len(picture.curves[0].points) < 200


def test_the_device_is_what_the_plan_has() -> None:
    plan = make_plan()
    picture = cache_of(plan)
    assert picture.memory_bytes == 40 * 10**9
    weights = plan.answer.rows[0].plan.weight_bytes
    assert picture.free_bytes == plan.demand.usable_bytes - weights


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("factor", [0.3, 0.77, 1, 1.9, 11])
def test_users_are_those_of_a_plan_for_one_device(name: str, factor: float) -> None:
    plan = make_plan(name)
    picture = users_of(plan)
    memory = round(plan.demand.device.memory_bytes * factor)
    device = dataclasses.replace(plan.demand.device, memory_bytes=memory)
    demand = dataclasses.replace(plan.demand, device=device, replica_sizes=(1,))
    counted = {
        row.name + (" *" if row.is_original else ""): plan_serving(
            row.model, demand, plan.formats[0]
        ).users_per_replica
        for row in plan.candidates.rows
    }
    for line, users in zip(picture.curves, picture.users_at(memory), strict=True):
        assert {counted[name] for name in line.names} == {users}


def test_steps_rise_by_one_user_where_one_more_fits() -> None:
    picture = users_of(make_plan())
    for line, (weights, user) in zip(picture.curves, picture.loads, strict=True):
        for (x0, y0), (x1, y1) in itertools.pairwise(line.points):
            assert x1 >= x0
            assert y1 >= y0
            if x0 == x1:
                assert y1 == y0 + 1
                assert 0.9 * x0 == pytest.approx(weights + y1 * user, rel=1e-12)
        assert line.points[-1][0] == picture.high
        assert picture.low <= line.points[0][0]
        assert line.points[-1][1] == picture.users_at(picture.high)[picture.curves.index(line)]


def test_a_model_that_is_too_large_for_the_axis_has_no_picture() -> None:
    small = Device(name="small", title="a small one", memory_bytes=2**20)
    assert compute_user_curves(make_plan(device=small)) is None
    assert compute_cache_curves(make_plan(device=small)) is not None


def test_rows_without_a_user_are_named() -> None:
    tight = Device(name="tight", title="a tight one", memory_bytes=2**24)
    picture = users_of(make_plan(device=tight, context=2**17))
    assert picture.left_out == ("QKV *", "QKV, layer input *", "Q-K=V", "GQA-4")
    assert [line.names for line in picture.curves] == [("Q-MQA",), ("MQA",), ("Q-GQA-4",)]


def test_a_network_that_decodes_nothing_has_neither() -> None:
    plan = make_plan(trains=True)
    layer = plan.model.layers[0]
    config = dataclasses.replace(layer.attention.config, causal=False)  # type: ignore[union-attr]
    seeing = dataclasses.replace(
        layer, attention=dataclasses.replace(layer.attention, config=config)
    )
    model = dataclasses.replace(load_size("300M"), layers=(seeing,))
    bidirectional = dataclasses.replace(plan, model=model)
    assert compute_cache_curves(bidirectional) is None
    assert compute_user_curves(bidirectional) is None


@pytest.mark.parametrize("size", SIZES)
def test_points_are_the_published_ones(size: Size) -> None:
    picture = compute_quality_points(size)
    placed = {standing.variant: standing for standing in frontier_positions(size)}
    assert {point.variant for point in picture.points} == set(placed)
    for point in picture.points:
        quality = quality_of(point.variant, size)
        assert quality is not None
        assert (point.change_percent, point.low, point.high) == (
            quality.change_percent,
            quality.low,
            quality.high,
        )
        assert point.share == placed[point.variant].cost / placed["QKV"].cost
        assert point.status == placed[point.variant].status
        assert (point.dominated_by == ()) == (point.status == "frontier")
    shares = [point.share for point in picture.points]
    assert shares == sorted(shares, reverse=True)


def test_the_frontier_has_no_projection_sharing_until_one_head_is_left() -> None:
    small, large = (compute_quality_points(size) for size in SIZES)
    assert [point.variant for point in small.frontier] == ["Q-MQA", "MQA", "GQA-4", "QKV"]
    assert [point.variant for point in large.frontier] == ["Q-MQA", "MQA", "GQA-8", "QKV"]
    assert [point.share for point in small.frontier] == [1 / 32, 1 / 16, 1 / 4, 1]


def test_the_estimate_is_the_change_with_its_exponent() -> None:
    """If a share f of the positions is real, perplexities are raised to the power 1/f."""
    point = next(one for one in compute_quality_points("300M").points if one.variant == "Q-K=V")
    ratio = 5.27 / 5.11
    assert point.real_low == pytest.approx(100 * (ratio ** (1 / 0.53) - 1))
    assert point.real_high == pytest.approx(100 * (ratio ** (1 / 0.40) - 1))
    assert point.high < point.real_low < point.real_high
    assert math.isclose(point.real_low, 6, abs_tol=0.1)
    assert "40 % to 53 % of the positions" in estimate_note()


def test_caveats_of_both_sizes_are_said_once() -> None:
    pictures = [compute_quality_points(size) for size in SIZES]
    shared = shared_caveats(pictures)
    assert any("One network was trained per variant" in caveat for caveat in shared)
    assert any("padded" in caveat for caveat in shared)
    own = [set(picture.caveats) - set(shared) for picture in pictures]
    assert not own[0] & own[1]
    assert any("Q-GQA-4 of 300M: The released script" in caveat for caveat in own[0])
