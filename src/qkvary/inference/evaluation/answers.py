"""Accuracies on tasks with choices: standard errors, what guessing gives, and the mean of several.

Knows numbers only.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FIVE = ("arc_challenge", "arc_easy", "hellaswag", "piqa", "winogrande")
"""The tasks whose mean papers print."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How many of the answers are right."""

    value: float
    """As a share."""
    error: float
    """Its standard error over documents; NaN for fewer than two."""
    chance: float | None
    """What guessing gives on these documents; ``None`` where there are no choices."""

    @property
    def distance(self) -> float | None:
        """How far it is from guessing, in its standard errors; ``None`` where that has no sense."""
        if self.chance is None or not self.error > 0:
            return None
        return (self.value - self.chance) / self.error


@dataclass(frozen=True, slots=True, kw_only=True)
class Contamination:
    """How many questions of a task stand in a training text, and how the others are answered."""

    questions: int
    """That were looked for."""
    shared: int
    """That share a run of words with the text."""
    accuracy: Share | None
    """On the others; ``None`` where there are none."""
    normalised: Share | None
    """The same, where the task has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """What a network answers on a task."""

    task: str
    """As lm-eval calls it."""
    documents: int
    """Questions that were asked."""
    evaluated: str
    """The file that they come from."""
    fewshot: int
    """Solved examples before each question."""
    shots_from: str | None
    """The file that these come from, where there are any."""
    accuracy: Share
    """Of the most probable choice; on LAMBADA, of the most probable word."""
    normalised: Share | None
    """Of the most probable choice per character, where the task has it."""
    perplexity: float | None
    """Of the last word, where the task has it."""
    cut_prompts: float
    """Share of prompts that did not fit the network and lost tokens on the left."""
    version: str
    """Of the task in lm-eval."""
    contamination: Contamination | None = None
    """What of it was trained on, where that was looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanScore:
    """The mean of five tasks, each of equal weight."""

    accuracy: Share
    """Of the most probable choices."""
    normalised: Share
    """The same with lengths taken out, where a task has that."""


def measure_share(right: Sequence[float], choices: Sequence[int] | None = None) -> Share:
    """Count answers.

    Args:
        right: 1 for a right answer, 0 for a wrong one.
        choices: How many choices each question has.

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
    return Share(value=value, error=error, chance=chance)


def average(scores: Mapping[str, TaskScore]) -> MeanScore | None:
    """The mean of the five, or ``None`` where one of them was not asked.

    Args:
        scores: By the names of the tasks.
    """
    if not set(FIVE) <= scores.keys():
        return None
    found = [scores[name] for name in FIVE]
    return MeanScore(
        accuracy=_mean([one.accuracy for one in found]),
        normalised=_mean([one.normalised or one.accuracy for one in found]),
    )


def _mean(shares: Sequence[Share]) -> Share:
    count = len(shares)
    chances = [one.chance for one in shares if one.chance is not None]
    return Share(
        value=sum(one.value for one in shares) / count,
        error=math.sqrt(sum(one.error**2 for one in shares)) / count,
        chance=sum(chances) / count if len(chances) == count else None,
    )
