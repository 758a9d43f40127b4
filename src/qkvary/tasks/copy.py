"""Copy: every digit stays."""

from torch import Tensor

from qkvary.tasks.config import SequenceTaskConfig
from qkvary.tasks.digit_sequences import DigitSequenceTask, positions_like


def columns(tokens: Tensor) -> Tensor:
    """Return the same index."""
    return positions_like(tokens)


def load(config: SequenceTaskConfig) -> DigitSequenceTask:
    """Return the task."""
    return DigitSequenceTask(config, columns)
