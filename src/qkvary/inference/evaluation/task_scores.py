"""Scores on tasks: metrics with standard errors and chance levels, and the mean of five tasks.

Needs neither networks nor lm-eval.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qkvary.inference.evaluation.local_tasks import FIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A score on a task, such as the share of correct answers."""

    value: float
    error: float = math.nan
    """The standard error over questions; NaN for one question, or if the value is not a mean."""
    chance: float | None = None
    """The accuracy of random guessing; ``None`` if a question has no choices."""

    @property
    def distance(self) -> float | None:
        """The number of standard errors by which the score exceeds random guessing.

        ``None`` if a question has no choices, or if the standard error is zero or NaN.
        """
        if self.chance is None or not self.error > 0:
            return None
        return (self.value - self.chance) / self.error


Metrics = Mapping[str, Metric]
"""Scores by lm-eval's name of the metric, with the filter if there is one. ``acc`` is the accuracy
of the most probable choice; ``acc_norm`` ranks choices by log-probability per character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contamination:
    """The overlap of a task with a training text, and metrics on the questions without overlap."""

    metrics: Metrics
    questions: int
    shared: int
    """Number of questions with 13 consecutive words (or all words) from the training text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """The score of a network on a task, or on a group of tasks."""

    metrics: Metrics
    task: str
    """The name of the task in lm-eval."""
    documents: int | None
    """The number of questions; ``None`` for a group of tasks."""
    evaluated: str | None = None
    """The local file of the questions; None if they are not from a local file."""
    fewshot: int | None
    """Number of solved examples before each question; ``None`` for a group of tasks."""
    shots_from: str | None = None
    """The local file of the few-shot examples; None if they are not from a local file."""
    cut_prompts: float | None
    """The share of prompts that were cut on the left to fit the network, if there are prompts."""
    version: str
    """The version of the task in lm-eval."""
    contamination: Contamination | None = None
    """The overlap with a training text, if one was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMeasurement:
    """The scores of a language model on tasks."""

    limit: int | None
    """The maximum number of questions per task; ``None`` for all."""
    against: Mapping[str, Any] | None
    scores: Mapping[str, TaskScore]
    """The scores by the name of the task, or of lm-eval's group of tasks."""
    lm_eval: str

    @property
    def mean(self) -> Metrics | None:
        """The mean of the five tasks with equal weights; ``None`` if one of them was not evaluated.

        If a task has no accuracy per character, its plain accuracy is used.
        """
        if not set(FIVE) <= self.scores.keys():
            return None
        found = [self.scores[name].metrics for name in FIVE]
        return {
            name: _mean([one.get(name, one["acc"]) for one in found])
            for name in ("acc", "acc_norm")
        }


def measure_mean(answers: Sequence[float], choices: Sequence[int] | None = None) -> Metric:
    """Return the mean of a metric over questions, with its standard error and chance level."""
    count = len(answers)
    value = sum(answers) / count
    spread = sum((one - value) ** 2 for one in answers)
    error = math.sqrt(spread / (count - 1) / count) if count > 1 else math.nan
    chance = None if choices is None else sum(1 / one for one in choices) / count
    return Metric(value=value, error=error, chance=chance)


def _mean(shares: Sequence[Metric]) -> Metric:
    count = len(shares)
    chances = [one.chance for one in shares if one.chance is not None]
    return Metric(
        value=sum(one.value for one in shares) / count,
        error=math.sqrt(sum(one.error**2 for one in shares)) / count,
        chance=sum(chances) / count if len(chances) == count else None,
    )
