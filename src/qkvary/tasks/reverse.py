"""Reverse: 4 3 9 8 becomes 8 9 3 4."""

from functools import partial

from qkvary.tasks.digit_sequences import DigitSequenceTask, positions_like

load = partial(DigitSequenceTask, columns=lambda tokens: positions_like(tokens).flip(-1))
