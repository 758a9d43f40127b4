"""The learning rate of each step, as a pure function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from qkvary.training.config import ScheduleConfig

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


_FACTORS: Mapping[str, Factor] = {
    "constant": _constant,
    "cosine_warmup": _cosine_warmup,
    "cosine": _cosine,
    "inverse_sqrt": _inverse_sqrt,
}


def learning_rate(schedule: ScheduleConfig, *, peak: float, step: int, steps: int) -> float:
    """Return the learning rate of one step.

    ``cosine_warmup`` is peak * (1 + cos(pi step/steps)) / 2 * min(1, step/warmup): the first step
    has rate 0, and the rate reaches 0 only after the last step.

    ``cosine`` is peak * (step + 1)/warmup up to the warm-up, then low + (peak - low) *
    (1 + cos(pi (step - warmup)/(steps - warmup))) / 2 with low = floor * peak.

    ``inverse_sqrt`` is peak * min(s/warmup, sqrt(warmup/s)) with s = step + 1. Vaswani et al. 2017
    write it as d_model^-0.5 min(s^-0.5, s warmup^-1.5): a peak of (d_model warmup)^-0.5.

    Args:
        schedule: The schedule.
        peak: Peak learning rate.
        step: Counted from 0.
        steps: Steps of the whole run.

    Source: ``cosine_warmup`` from the public code of the key-value transformer (Borji 2023),
    ``CosineWarmupScheduler``; ``cosine`` from that of Kayyam et al. 2026.
    """
    return peak * _FACTORS[schedule.name](step, steps, schedule)
