"""Learning rate and momentum of each step, as pure functions of the step."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping

from qkvary.training.config import ONE_CYCLE_DIP, ScheduleConfig

Factor = Callable[[int, int, ScheduleConfig], float]
"""Step, total steps, schedule -> factor of the peak learning rate."""


def _constant(_step: int, _steps: int, _schedule: ScheduleConfig) -> float:
    return 1.0


def _cosine_warmup(step: int, steps: int, schedule: ScheduleConfig) -> float:
    warmup = schedule.warmup_steps
    warm = min(1.0, step / warmup) if warmup else 1.0
    return 0.5 * (1.0 + math.cos(math.pi * step / steps)) * warm


def _cosine(step: int, steps: int, schedule: ScheduleConfig) -> float:
    warmup, floor = schedule.warmup_steps, schedule.floor
    if step < warmup:
        return (step + 1) / warmup
    end = steps if schedule.decay_steps is None else schedule.decay_steps
    done = min(1.0, (step - warmup) / max(1, end - warmup))
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * done))


def _inverse_sqrt(step: int, _steps: int, schedule: ScheduleConfig) -> float:
    done, warmup = step + 1, schedule.warmup_steps
    return min(done / warmup, math.sqrt(warmup / done))


def _multistep(step: int, _steps: int, schedule: ScheduleConfig) -> float:
    return schedule.gamma ** bisect_right(schedule.milestones, step)


def _one_cycle(step: int, steps: int, _schedule: ScheduleConfig) -> float:
    return _cycle(step / steps, ONE_CYCLE_START, 1.0, ONE_CYCLE_END)


def _cycle(done: float, start: float, middle: float, end: float) -> float:
    """Return the value after a share of the steps: half cosines between three values."""
    if done < ONE_CYCLE_RISE:
        return _half_cosine(done / ONE_CYCLE_RISE, start, middle)
    return _half_cosine((done - ONE_CYCLE_RISE) / (1.0 - ONE_CYCLE_RISE), middle, end)


def _half_cosine(done: float, start: float, end: float) -> float:
    return start + (end - start) * 0.5 * (1.0 - math.cos(math.pi * done))


_FACTORS: Mapping[str, Factor] = {
    "constant": _constant,
    "cosine_warmup": _cosine_warmup,
    "cosine": _cosine,
    "inverse_sqrt": _inverse_sqrt,
    "multistep": _multistep,
    "one_cycle": _one_cycle,
}

ONE_CYCLE_RISE, ONE_CYCLE_START, ONE_CYCLE_END = 0.25, 1 / 25, 1e-5
"""Share of the steps until the peak; first and last learning rate as fractions of it."""


def learning_rate(schedule: ScheduleConfig, *, peak: float, step: int, steps: int) -> float:
    """Return the learning rate of one step.

    ``cosine_warmup`` is peak * (1 + cos(pi step/steps)) / 2 * min(1, step/warmup): the first step
    has rate 0, and the rate reaches 0 only after the last step.

    ``cosine`` is peak * (step + 1)/warmup up to the warm-up, then low + (peak - low) *
    (1 + cos(pi (step - warmup)/(steps - warmup))) / 2 with low = floor * peak.

    ``inverse_sqrt`` is peak * min(s/warmup, sqrt(warmup/s)) with s = step + 1. Vaswani et al. 2017
    write it as d_model^-0.5 min(s^-0.5, s warmup^-1.5): a peak of (d_model warmup)^-0.5.

    ``multistep`` is peak * gamma^(number of milestones up to the step).

    ``one_cycle`` goes by half a cosine from peak/25 to the peak in the first quarter of the steps,
    then by another to peak/100,000, which it would reach after the last step.

    Args:
        schedule: The schedule.
        peak: Peak learning rate.
        step: Counted from 0.
        steps: Steps of the whole run.

    Source: ``cosine_warmup`` from the public code of the key-value transformer (Borji 2023),
    ``CosineWarmupScheduler``; ``cosine`` from that of Kayyam et al. 2026; ``one_cycle`` is
    ``fit_one_cycle`` of fastai (Smith 2018), as in the number experiment of Borji 2023.
    """
    return peak * _FACTORS[schedule.name](step, steps, schedule)


def momentum(schedule: ScheduleConfig, *, highest: float, step: int, steps: int) -> float:
    """Return the first beta of one step: the optimizer's own, except under ``one_cycle``.

    There it falls by 0.1 while the learning rate rises, and comes back while that falls.

    Args:
        schedule: The schedule.
        highest: The first beta of the optimizer.
        step: Counted from 0.
        steps: Steps of the whole run.
    """
    if schedule.name != "one_cycle":
        return highest
    return _cycle(step / steps, highest, highest - ONE_CYCLE_DIP, highest)
