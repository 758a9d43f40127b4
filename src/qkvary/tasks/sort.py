"""Sort: 4 3 9 8 becomes 3 4 8 9; equal digits keep their order."""

from functools import partial

from qkvary.tasks.digit_sequences import DigitSequenceTask

load = partial(DigitSequenceTask, columns=lambda tokens: tokens.argsort(dim=-1, stable=True))
