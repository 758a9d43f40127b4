"""Loads the newest training state as a process that trains alone does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from qkvary.checkpoints.training_state import TrainingState
from qkvary.training.distribution import Distribution

KEY = "the key of a run"


class _Loader(Distribution):
    """Keeps the state instead of restoring a network from it."""

    state: TrainingState | None = None

    def restore(self, state: TrainingState, *_: Any) -> None:
        self.state = state


def load_training_state(folder: Path, report: Callable[[str], None]) -> TrainingState | None:
    loader, unused = _Loader(), cast("Any", None)
    loader.load(folder, model=unused, optimizer=unused, key=KEY, report=report)
    return loader.state
