"""The learning rate of each step, as a pure function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from qkvary.training.config import ScheduleConfig

Factor = Callable[[int, int, int], float]
"""Step, all steps, warm-up steps -> what the peak learning rate is multiplied with."""


def _constant(_step: int, _steps: int, _warmup: int) -> float:
    return 1.0


def _cosine_warmup(step: int, steps: int, warmup: int) -> float:
    warm = min(1.0, step / warmup) if warmup else 1.0
    return 0.5 * (1.0 + math.cos(math.pi * step / steps)) * warm


_FACTORS: Mapping[str, Factor] = {"constant": _constant, "cosine_warmup": _cosine_warmup}


def learning_rate(schedule: ScheduleConfig, *, peak: float, step: int, steps: int) -> float:
    """Return the learning rate of one step.

    ``cosine_warmup`` is peak * (1 + cos(pi step/steps)) / 2 * min(1, step/warmup): the first step
    has rate 0, and the rate reaches 0 only after the last step.

    Args:
        schedule: How the rate moves.
        peak: The rate that the schedule multiplies.
        step: Counted from 0.
        steps: Steps of the whole run.

    Source: public code of the key-value transformer (Borji 2023), ``CosineWarmupScheduler``.
    """
    return peak * _FACTORS[schedule.name](step, steps, schedule.warmup_steps)
