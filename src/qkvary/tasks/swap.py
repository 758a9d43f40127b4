"""Swap: 4 3 9 8 becomes 9 8 4 3, the second half before the first."""

from torch import Tensor

from qkvary.tasks.config import SequenceTaskConfig
from qkvary.tasks.digit_sequences import DigitSequenceTask, positions_like


def columns(tokens: Tensor) -> Tensor:
    """Return the index half a sequence away."""
    return positions_like(tokens).roll(-(tokens.shape[-1] // 2), dims=-1)


def load(config: SequenceTaskConfig) -> DigitSequenceTask:
    """Return the task."""
    return DigitSequenceTask(config, columns)
