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


def published(step: int, *, steps: int, warmup: int, peak: float, low: float) -> float:
    """The cosine of the language models, as their code says it."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return low + (peak - low) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


@pytest.mark.parametrize("step", [0, 1, 498, 499, 500, 501, 2369, 4236, 4237])
def test_the_cosine_of_language_models(step: int) -> None:
    schedule = ScheduleConfig(name="cosine", warmup_steps=500, floor=0.1)
    rate = learning_rate(schedule, peak=2e-4, step=step, steps=4238)
    expected = published(step, steps=4238, warmup=500, peak=2e-4, low=2e-5)
    assert rate == pytest.approx(expected, rel=1e-12)


def test_a_cosine_may_end_before_the_run_or_long_behind_it() -> None:
    long = ScheduleConfig(name="cosine", warmup_steps=2000, floor=0.1, decay_steps=600_000)
    rate = learning_rate(long, peak=6e-4, step=100_000, steps=105_000)
    assert rate == pytest.approx(5.65e-4, rel=1e-3)
    short = ScheduleConfig(name="cosine", warmup_steps=2, floor=0.25, decay_steps=10)
    rates = [learning_rate(short, peak=1.0, step=step, steps=20) for step in range(20)]
    assert rates[10:] == [0.25] * 10


def test_without_warm_up_the_cosine_begins_at_the_peak() -> None:
    schedule = ScheduleConfig(name="cosine")
    assert learning_rate(schedule, peak=0.3, step=0, steps=7) == 0.3


@pytest.mark.parametrize("step", [1, 2, 3_999, 4_000, 4_001, 11_600])
def test_the_schedule_of_the_first_transformer(step: int) -> None:
    schedule = ScheduleConfig(name="inverse_sqrt", warmup_steps=4_000)
    rate = learning_rate(schedule, peak=(128 * 4_000) ** -0.5, step=step - 1, steps=11_600)
    expected = 128**-0.5 * min(step**-0.5, step * 4_000**-1.5)
    assert rate == pytest.approx(expected, rel=1e-12)


def test_an_inverse_square_root_needs_a_warm_up() -> None:
    with pytest.raises(ValueError, match="the inverse_sqrt schedule needs a warm-up, got warmup"):
        ScheduleConfig(name="inverse_sqrt")
