"""States in which settings no variant does better than a guess. Never imports torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean

from qkvary.data.recall import score_positions
from qkvary.studies.results.summary import RunRow
from qkvary.studies.study import Setting, Study
from qkvary.tasks.config import (
    AnomalyTaskConfig,
    ImageTaskConfig,
    RecallTaskConfig,
    SequenceTaskConfig,
    TextTaskConfig,
)
from qkvary.text.names import listed
from qkvary.text.numbers import real

LEARNT = 0.05
"""The least share of the way from a guess to a perfect score that counts as learnt."""


def describe_chance(study: Study, runs: Iterable[RunRow]) -> tuple[tuple[str, ...], bool]:
    """State in which settings the best variant does no better than a guess.

    Args:
        study: The study.
        runs: Its runs.

    Returns:
        A sentence if there are any, and whether all settings with a finished run are such.
    """
    values: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        if run.selected and run.value is not None:
            values.setdefault(run.setting, {}).setdefault(run.variant, []).append(run.value)
    settings = [setting for setting in study.settings if setting.name in values]
    guesses = {
        setting.name: f"{setting.task.metric} {real(guess)}"
        for setting in settings
        if (guess := guess_score(setting)) is not None
        and not _is_learnt(setting, guess, map(fmean, values[setting.name].values()))
    }
    if not guesses:
        return (), False
    sentence = (
        f"Nothing was learnt on {listed([*guesses])}: no variant does visibly better than guessing "
        f"({listed([*dict.fromkeys(guesses.values())])})."
    )
    return (sentence,), len(guesses) == len(settings)


def guess_score(setting: Setting) -> float | None:
    """Return the score of a solver that learns nothing, or None if it is not known.

    It guesses uniformly; in recall it knows which pair is the likeliest at the position of a query.
    """
    task = setting.task
    if setting.metric not in (None, task.metric):
        return None
    match task:
        case SequenceTaskConfig():
            choices = task.vocabulary
        case ImageTaskConfig():
            choices = task.images.classes
        case AnomalyTaskConfig():
            choices = task.set_size
        case RecallTaskConfig():
            return score_positions(task.length, task.pairs, task.power)
        case TextTaskConfig():
            choices = getattr(setting.network, "classes", None)
        case _:
            choices = getattr(setting.network, "vocabulary", None)
    if choices is None:
        return None
    return {"accuracy": 1.0 / choices, "loss": math.log(choices)}.get(task.metric)


def _is_learnt(setting: Setting, guess: float, means: Iterable[float]) -> bool:
    if setting.task.higher_is_better:
        return max(means) - guess >= LEARNT * (1.0 - guess)
    return guess - min(means) >= LEARNT * guess
