import dataclasses
import math
import re

from qkvary.reports import learning_curves as curves
from qkvary.reports import study_charts as charts
from qkvary.reports.variant_styles import family_of
from qkvary.studies.results.summary import Frontier
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


def test_figures_that_are_not_finite_are_left_out() -> None:
    first, *others = frontier().points
    broken = dataclasses.replace(first, quality=math.nan)
    changed = dataclasses.replace(frontier(), points=(broken, *others))
    drawn = charts.frontier_chart(changed, "QKV").to_svg("c")
    assert "nan" not in drawn.lower()
    assert f">{first.variant}<" not in drawn


def test_supported_differences_are_filled() -> None:
    table = make_summary().tables[0]
    drawn = charts.difference_chart(table, "QKV").to_svg("c")
    gaps = [row.difference for row in table.rows if row.difference]
    assert drawn.count(" hollow") == sum(gap.verdict == "not distinguished" for gap in gaps)
    assert "← worse" in drawn
    loss = next(one for one in make_summary().tables if not one.higher_is_better)
    assert "← better" in charts.difference_chart(loss, "QKV").to_svg("c")


def test_panels_share_one_scale_and_show_the_baseline() -> None:
    group = [one for one in make_summary().curves if one.quantity == "validation loss"][:3]
    drawings = [chart.draw().to_svg("p") for chart in curves.panels(group, "QKV")]
    assert len(drawings) == 3
    assert curves.count_runs(group) == "5 runs"
    scales = [re.findall(r'class="tick end">([^<]*)<', drawing) for drawing in drawings]
    assert scales[0] == scales[1] == scales[2]
    assert sum('class="behind"' in drawing for drawing in drawings) == 2


def test_thinned_curves_keep_their_ends() -> None:
    kept = curves.thinned(1000)
    assert len(kept) <= curves.POINTS
    assert (kept[0], kept[-1]) == (0, 999)
    assert curves.thinned(3) == [0, 1, 2]
    assert curves.thinned(9, 4) == [0, 3, 5, 8]
