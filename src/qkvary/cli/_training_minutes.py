"""The number of steps of a training that is to take some minutes."""

import math
from collections.abc import Callable

from qkvary.cli._training_effort import estimate_seconds
from qkvary.data.reuse import PlannedSet
from qkvary.storage.errors import UsageError
from qkvary.studies.running.store import Store
from qkvary.studies.running.trainings import list_trainings
from qkvary.studies.study import Study

FIRST_STEPS = 1_000
"""Steps from which the time of others is estimated."""


def choose_steps(
    minutes: float,
    study_of: Callable[[int], Study],
    planned: PlannedSet,
    store: Store,
    command: str,
) -> int:
    """Return the steps that take so many minutes here, with two digits.

    A command that was typed before has the steps that were chosen then, so that it resumes.

    Args:
        minutes: Minutes of each run, validations and test included.
        study_of: Returns the training with a number of steps.
        planned: The training data.
        store: The store of the runs.
        command: The command line.

    Raises:
        UsageError: for a time that is no time, or a device that cannot be timed.
    """
    if not 0 < minutes < math.inf:
        raise UsageError(f"expected a number of minutes above 0, got {minutes}")
    for training in list_trainings(store):
        if command in training.commands and "--minutes" in command:
            return training.study.settings[0].training.steps
    steps = FIRST_STEPS
    # Validations and their sizes depend on the steps.
    for _ in range(3):
        run = study_of(steps).cells()[0].run
        seconds = estimate_seconds(run, planned)
        if seconds is None:
            raise UsageError(
                f"expected --steps on {run.device}, got --minutes, which is estimated for a "
                "processor"
            )
        steps = max(1, int(steps * 60 * minutes / seconds))
    digits = max(0, len(str(steps)) - 2)
    return steps // 10**digits * 10**digits
