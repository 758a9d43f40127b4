"""Sub: every digit x becomes 9 - x."""

from functools import partial

from qkvary.tasks.digit_sequences import DigitSequenceTask, positions_like

load = partial(
    DigitSequenceTask,
    columns=positions_like,
    relabel=lambda digits, vocabulary: vocabulary - 1 - digits,
)
