import itertools

import pytest

from qkvary.storage.errors import ResourceError
from qkvary.studies.running import publishing
from qkvary.studies.running.publishing import (
    EARLY_INTERVAL_SECONDS,
    FIRST_SECONDS,
    INTERVAL_SECONDS,
    SHARE,
    Publisher,
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds = [1000.0]
    monkeypatch.setattr(publishing.time, "monotonic", lambda: seconds[0])
    return seconds


def test_new_results_are_published_after_the_interval(clock: list[float]) -> None:
    calls: list[float] = []
    publisher = Publisher(lambda: calls.append(clock[0]))
    start = clock[0]
    for second in range(500):
        clock[0] = start + second
        if second < 440:
            publisher.add()
        assert publisher.publish() == ""
    early = [FIRST_SECONDS + EARLY_INTERVAL_SECONDS * number for number in range(16)]
    assert early[-1] == 310
    later = [310 + INTERVAL_SECONDS * number for number in range(1, 6)]
    assert [call - start for call in calls] == [*early, *later]


def test_a_slow_page_is_written_less_often_after_five_minutes(clock: list[float]) -> None:
    calls: list[float] = []

    def slow() -> None:
        calls.append(clock[0])
        clock[0] += 6.0

    publisher = Publisher(slow)
    start = clock[0]
    while clock[0] < start + 800:
        clock[0] += 1.0
        publisher.add()
        publisher.publish()
    gaps = [later - first for first, later in itertools.pairwise(calls)]
    early = [gap for gap, call in zip(gaps, calls, strict=False) if call + 6 < start + 300]
    assert set(early) == {EARLY_INTERVAL_SECONDS}
    assert len(early) == 15
    assert set(gaps[len(early) :]) == {6.0 / SHARE}


@pytest.mark.parametrize("error", [ResourceError, KeyError, ZeroDivisionError])
def test_an_error_is_reported_once_and_ends_the_calls(
    error: type[Exception], clock: list[float]
) -> None:
    def broken() -> None:
        raise error("the disk is full")

    publisher = Publisher(broken)
    publisher.add()
    clock[0] += INTERVAL_SECONDS
    said = publisher.publish()
    assert said.startswith("the page is not written before the end: ")
    assert "the disk is full" in said
    publisher.add()
    clock[0] += 10 * INTERVAL_SECONDS
    assert publisher.publish() == ""


def test_without_a_function_nothing_happens(clock: list[float]) -> None:
    publisher = Publisher()
    publisher.add()
    clock[0] += 2 * INTERVAL_SECONDS
    assert publisher.publish() == ""
