"""Sort: 4 3 9 8 becomes 3 4 8 9."""

import torch
from torch import Tensor

from qkvary.tasks.config import SequenceTaskConfig
from qkvary.tasks.digit_sequences import DigitSequenceTask


def columns(tokens: Tensor) -> Tensor:
    """Return the index of the digit of each rank; equal digits keep their order."""
    return torch.argsort(tokens, dim=-1, stable=True)


def load(config: SequenceTaskConfig) -> DigitSequenceTask:
    """Return the task."""
    return DigitSequenceTask(config, columns)
