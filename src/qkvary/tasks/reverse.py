"""Reverse: 4 3 9 8 becomes 8 9 3 4."""

from torch import Tensor

from qkvary.tasks.config import SequenceTaskConfig
from qkvary.tasks.digit_sequences import DigitSequenceTask, positions_like


def columns(tokens: Tensor) -> Tensor:
    """Return the flipped index."""
    return positions_like(tokens).flip(-1)


def load(config: SequenceTaskConfig) -> DigitSequenceTask:
    """Return the task."""
    return DigitSequenceTask(config, columns)
