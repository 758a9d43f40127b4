import dataclasses
import math
import re

import pytest

from qkvary.reports import label_placement
from qkvary.reports import learning_curves as curves
from qkvary.reports import study_charts as charts
from qkvary.reports.variant_styles import family_of
from qkvary.studies.results.summary import Frontier, LearningCurve
from tests.reports.synthetic import make_summary


def frontier() -> Frontier:
    return next(one for one in make_summary().frontiers if one.axis == "cache_bytes_per_token")


def test_frontier_names_every_variant() -> None:
    drawn = charts.frontier_chart(frontier(), "QKV").to_svg("c")
    for point in frontier().points:
        assert f">{point.variant}<" in drawn
        assert f"mark f-{family_of(point.variant, 'QKV').key}" in drawn
    assert "1 KiB" in drawn


def test_only_what_is_surely_dominated_is_drawn_as_dominated() -> None:
    """A better mean of a cheaper variant may be chance."""
    first, second, third, *_ = frontier().points
    points = (
        dataclasses.replace(first, standing="frontier"),
        dataclasses.replace(second, standing="dominated by the means only"),
        dataclasses.replace(third, standing="dominated"),
    )
    drawn = charts.frontier_chart(dataclasses.replace(frontier(), points=points), "QKV")
    assert drawn.to_svg("c").count(" hollow") == 1


@pytest.mark.parametrize("number", [0, 1, 2])
def test_few_points_make_a_chart(number: int) -> None:
    few = dataclasses.replace(frontier(), points=frontier().points[:number])
    assert charts.frontier_chart(few, "QKV").to_svg("c").count("leader") == 0


def test_figures_that_are_not_finite_are_left_out() -> None:
    first, *others = frontier().points
    broken = dataclasses.replace(first, quality=math.nan)
    changed = dataclasses.replace(frontier(), points=(broken, *others))
    drawn = charts.frontier_chart(changed, "QKV").to_svg("c")
    assert "nan" not in drawn.lower()
    assert f">{first.variant}<" not in drawn


def test_error_bars_are_the_interval_around_the_point() -> None:
    point = next(one for one in frontier().points if one.difference)
    gap = point.difference
    assert gap is not None
    assert gap.mean is not None
    assert gap.low_single is not None
    low, high = charts.error_bar(point, "test loss") or (0, 0)
    assert low < point.quality < high
    assert point.quality - low == pytest.approx(gap.mean - gap.low_single)
    assert charts.error_bar(dataclasses.replace(point, difference=None), "test loss") is None


def test_no_error_bar_leaves_the_values_that_an_accuracy_can_have() -> None:
    point = next(one for one in frontier().points if one.difference)
    assert point.difference is not None
    gap = dataclasses.replace(point.difference, mean=-0.25, low_single=-1.0, high_single=1.0)
    wide = dataclasses.replace(point, quality=0.75, difference=gap)
    assert charts.error_bar(wide, "test loss") == (0.0, 2.0)
    assert charts.error_bar(wide, "test accuracy") == (0.0, 1.0)
    low = dataclasses.replace(wide, quality=0.5)
    assert charts.error_bar(low, "accuracy") == (0.0, 1.0)


def test_points_that_cover_each_other_move_apart() -> None:
    moved = charts.separate([(10, 10), (10, 10), (10, 12), (50, 10)])
    assert moved[0] == (10, 10)
    assert moved[3] == (50, 10)
    assert len({x for x, _ in moved[:3]}) == 3


def test_supported_differences_are_filled() -> None:
    table = make_summary().tables[0]
    drawn = charts.difference_chart(table, "QKV").to_svg("c")
    gaps = [row.difference for row in table.rows if row.difference]
    assert drawn.count(" hollow") == sum(gap.verdict == "not distinguished" for gap in gaps)
    assert "← worse" in drawn
    loss = next(one for one in make_summary().tables if not one.higher_is_better)
    assert "← better" in charts.difference_chart(loss, "QKV").to_svg("c")


def test_names_end_before_the_drawing_begins() -> None:
    table = make_summary().tables[0]
    long = dataclasses.replace(table.rows[1], variant="Q-K=V@rotary")
    drawn = charts.difference_chart(dataclasses.replace(table, rows=(long,)), "QKV").to_svg("c")
    (first, *_) = sorted(float(x) for x in re.findall(r'x1="([0-9.]+)"', drawn))
    assert first >= 8 + label_placement.text_width("Q-K=V@rotary")


def test_a_variant_without_runs_says_why() -> None:
    table = make_summary().tables[0]
    row = table.rows[4]
    assert row.difference is not None
    gap = dataclasses.replace(row.difference, mean=None, low=None, high=None)
    counts = dataclasses.replace(
        row.counts, done=0, diverged=row.counts.planned, failed=0, missing=0
    )
    changed = dataclasses.replace(row, difference=gap, counts=counts)
    rows = (*table.rows[:4], changed, *table.rows[5:])
    drawn = charts.difference_chart(dataclasses.replace(table, rows=rows), "QKV").to_svg("c")
    assert f"{row.counts.planned} diverged" in drawn


def test_runs_that_never_solved_are_counted() -> None:
    summary = make_summary()
    table = next(one for one in summary.tables if "reverse" in one.tasks and one.kind == "task")
    drawn = charts.solving_chart(table, summary.runs, "QKV").to_svg("c")
    seeds = [
        run for run in summary.runs if run.task == "reverse" and run.steps_to_solve is not None
    ]
    assert drawn.count('class="seed') == len(seeds)
    for row in table.rows:
        assert row.solving is not None
        unsolved = row.solving.runs - row.solving.solved
        if unsolved:
            assert f"{unsolved} of {row.solving.runs}" in drawn


def curve(values: list[float]) -> LearningCurve:
    count = len(values)
    return LearningCurve(
        setting="s",
        variant="QKV",
        quantity="train loss",
        steps=tuple(range(count)),
        seconds=tuple(float(step) for step in range(count)),
        mean=tuple(values),
        low=tuple(values),
        high=tuple(values),
        runs=(3,) * count,
    )


def test_panels_share_one_scale_and_show_the_baseline() -> None:
    group = [one for one in make_summary().curves if one.quantity == "validation loss"][:3]
    drawings = [chart.draw().to_svg("p") for chart in curves.panels(group, "seconds", "QKV")]
    assert len(drawings) == 3
    assert curves.count_runs(group) == "5 runs"
    scales = [re.findall(r'class="tick end">([^<]*)<', drawing) for drawing in drawings]
    assert scales[0] == scales[1] == scales[2]
    assert sum('class="behind"' in drawing for drawing in drawings) == 2


@pytest.mark.parametrize("values", [[], [1.0], [1.0, math.nan, 0.5], [0.0] * 90])
def test_odd_curves_make_panels(values: list[float]) -> None:
    (chart,) = curves.panels([curve(values)], "steps", "QKV")
    assert "nan" not in chart.draw().to_svg("p").lower()


def test_thinned_curves_keep_their_ends() -> None:
    kept = curves.thinned(1000)
    assert len(kept) <= curves.POINTS
    assert (kept[0], kept[-1]) == (0, 999)
    assert curves.thinned(3) == [0, 1, 2]
    assert curves.thinned(9, 4) == [0, 3, 5, 8]


def test_headline_follows_the_metric_of_the_setting() -> None:
    found = curves.headline_quantities(make_summary())
    assert found["reverse n=16"] == "validation accuracy"
    assert found["characters"] == "validation loss"
