from qkvary.studies.running.estimates import TimeEstimate
from tests.studies.toy_study import toy_study

FIRST, SECOND, *_ = CELLS = toy_study([1, 2, 3]).cells()


def test_there_is_no_estimate_before_the_first_run() -> None:
    assert TimeEstimate().seconds_left(CELLS, 2) is None
    assert TimeEstimate().seconds_left((), 2) == 0.0


def test_runs_of_the_same_variant_count_first() -> None:
    estimate = TimeEstimate()
    estimate.add(FIRST, 2.0)
    assert estimate.expect(SECOND) == 2.0
    estimate.add(SECOND, 6.0)
    assert estimate.expect(FIRST) == 2.0
    assert estimate.expect(SECOND) == 6.0
    assert estimate.seconds_left(CELLS[2:], 2) == (2.0 + 6.0) * 2 / 2
