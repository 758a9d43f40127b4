"""Swap: 4 3 9 8 becomes 9 8 4 3, the second half before the first."""

from functools import partial

from qkvary.tasks.digit_sequences import DigitSequenceTask, positions_like

load = partial(
    DigitSequenceTask,
    columns=lambda tokens: positions_like(tokens).roll(-(tokens.shape[-1] // 2), dims=-1),
)
