"""Accuracies on tasks: standard errors, chance levels, and the mean of several tasks.

Knows numbers only.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FIVE = ("arc_challenge", "arc_easy", "hellaswag", "piqa", "winogrande")
"""The tasks whose mean papers report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """The share of correct answers."""

    value: float
    """The share of right answers."""
    error: float
    """The standard error over documents; NaN for fewer than two."""
    chance: float | None
    """The accuracy of guessing; ``None`` without choices."""

    @property
    def distance(self) -> float | None:
        """The distance from guessing in standard errors; ``None`` where it is undefined."""
        if self.chance is None or not self.error > 0:
            return None
        return (self.value - self.chance) / self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Contamination:
    """The overlap of a task's questions with a training text, and the accuracy without it."""

    questions: int
    """Number of questions that were searched for."""
    shared: int
    """Number of questions that share a run of words with the text."""
    accuracy: Accuracy | None
    """The accuracy on the other questions; ``None`` if there are none."""
    normalised: Accuracy | None
    """The length-normalised accuracy on the other questions, if the task has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """The score of a network on a task."""

    task: str
    """The name of the task in lm-eval."""
    documents: int
    """The number of questions."""
    evaluated: str
    """The file of the questions."""
    fewshot: int
    """Solved examples before each question."""
    shots_from: str | None
    """The file of the solved examples, if there is one."""
    accuracy: Accuracy
    """The accuracy of the most probable choice; for LAMBADA, of the most probable word."""
    normalised: Accuracy | None
    """The accuracy of the most probable choice per character, if the task has it."""
    perplexity: float | None
    """The perplexity of the last word, if the task has it."""
    cut_prompts: float
    """The share of prompts that were cut on the left to fit the network."""
    version: str
    """The version of the task in lm-eval."""
    contamination: Contamination | None = None
    """The overlap with a training text, if one was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanScore:
    """The mean over five tasks of equal weight."""

    accuracy: Accuracy
    """The mean accuracy."""
    normalised: Accuracy
    """The mean of the length-normalised accuracies, where a task has one."""


def measure_accuracy(right: Sequence[float], choices: Sequence[int] | None = None) -> Accuracy:
    """Average answers.

    Args:
        right: 1 for a correct answer, 0 for a wrong one.
        choices: The number of choices of each question.

    Raises:
        ValueError: if there are no answers.
    """
    count = len(right)
    if not count:
        raise ValueError("expected answers, got none")
    value = sum(right) / count
    spread = sum((one - value) ** 2 for one in right)
    error = math.sqrt(spread / (count - 1) / count) if count > 1 else math.nan
    chance = None if choices is None else sum(1 / one for one in choices) / count
    return Accuracy(value=value, error=error, chance=chance)


def average(scores: Mapping[str, TaskScore]) -> MeanScore | None:
    """Return the mean of the five tasks, or ``None`` if one of them is missing.

    Args:
        scores: Scores by task name.
    """
    if not set(FIVE) <= scores.keys():
        return None
    found = [scores[name] for name in FIVE]
    return MeanScore(
        accuracy=_mean([one.accuracy for one in found]),
        normalised=_mean([one.normalised or one.accuracy for one in found]),
    )


def _mean(shares: Sequence[Accuracy]) -> Accuracy:
    count = len(shares)
    chances = [one.chance for one in shares if one.chance is not None]
    return Accuracy(
        value=sum(one.value for one in shares) / count,
        error=math.sqrt(sum(one.error**2 for one in shares)) / count,
        chance=sum(chances) / count if len(chances) == count else None,
    )
