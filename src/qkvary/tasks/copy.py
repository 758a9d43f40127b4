"""Copy: every digit stays."""

from functools import partial

from qkvary.tasks.digit_sequences import DigitSequenceTask, positions_like

load = partial(DigitSequenceTask, columns=positions_like)
