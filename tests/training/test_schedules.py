import math

import pytest
import torch

from qkvary.training.config import ScheduleConfig
from qkvary.training.optimizers import learning_rate, momentum


@pytest.mark.parametrize("step", [0, 1, 2, 4, 5, 6, 389, 779])
def test_the_published_formula(step: int) -> None:
    schedule = ScheduleConfig(name="cosine_warmup", warmup_steps=5)
    rate = learning_rate(schedule, peak=0.001, step=step, steps=780)
    expected = 0.001 * 0.5 * (1 + math.cos(math.pi * step / 780)) * min(1, step / 5)
    assert rate == pytest.approx(expected, rel=1e-15)


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


@pytest.mark.parametrize("step", [1, 2, 3_999, 4_000, 4_001, 11_600])
def test_the_schedule_of_the_first_transformer(step: int) -> None:
    schedule = ScheduleConfig(name="inverse_sqrt", warmup_steps=4_000)
    rate = learning_rate(schedule, peak=(128 * 4_000) ** -0.5, step=step - 1, steps=11_600)
    expected = 128**-0.5 * min(step**-0.5, step * 4_000**-1.5)
    assert rate == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("steps", [90, 735])
def test_one_cycle_is_that_of_torch_where_it_ends_one_step_later(steps: int) -> None:
    """The cycle of fastai is divided by the steps, that of torch by one less."""
    config = ScheduleConfig(name="one_cycle")
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], betas=(0.9, 0.99))
    reference = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=1e-3,
        total_steps=steps + 1,
        pct_start=(0.25 * steps + 1) / (steps + 1),
        div_factor=25,
        final_div_factor=1e5 / 25,
        base_momentum=0.85,
        max_momentum=0.95,
    )
    for step in range(steps):
        group = optimizer.param_groups[0]
        rate = learning_rate(config, peak=1e-3, step=step, steps=steps)
        assert rate == pytest.approx(group["lr"], rel=1e-9)
        beta = momentum(config, highest=0.95, step=step, steps=steps)
        assert beta == pytest.approx(group["betas"][0], rel=1e-12)
        optimizer.step()
        reference.step()


def test_multistep_is_that_of_torch() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    expected = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 7], gamma=0.2)
    schedule = ScheduleConfig(name="multistep", milestones=(3, 7), gamma=0.2)
    for step in range(11):
        found = learning_rate(schedule, peak=0.3, step=step, steps=11)
        assert found == pytest.approx(expected.get_last_lr()[0])
        optimizer.step()
        expected.step()
