import math

import pytest

from qkvary.training.config import ScheduleConfig
from qkvary.training.schedules import learning_rate

COSINE = ScheduleConfig(name="cosine_warmup", warmup_steps=5)


def rate(step: int, schedule: ScheduleConfig = COSINE, steps: int = 780) -> float:
    return learning_rate(schedule, peak=0.001, step=step, steps=steps)


def test_constant() -> None:
    assert {rate(step, ScheduleConfig()) for step in range(780)} == {0.001}


def test_the_first_step_has_rate_zero_as_published() -> None:
    assert rate(0) == 0.0


@pytest.mark.parametrize("step", [1, 2, 4, 5, 6, 389, 779])
def test_the_published_formula(step: int) -> None:
    expected = 0.001 * 0.5 * (1 + math.cos(math.pi * step / 780)) * min(1, step / 5)
    assert rate(step) == pytest.approx(expected, rel=1e-15)


def test_known_values() -> None:
    assert rate(5) == pytest.approx(0.00099989861449, rel=1e-11)
    assert rate(390) == pytest.approx(0.0005, rel=1e-12)
    assert 0 < rate(779) < 1e-8


def test_without_warm_up_it_begins_at_the_peak() -> None:
    assert rate(0, ScheduleConfig(name="cosine_warmup")) == 0.001
