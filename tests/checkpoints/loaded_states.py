"""Loads the newest training state as a process that trains alone does."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from qkvary.checkpoints.training_state import TrainingState
from qkvary.storage.jsonvalues import JsonValue
from qkvary.training.distribution import Distribution


class _Loader(Distribution):
    """Keeps the state instead of restoring a network from it."""

    state: TrainingState | None = None

    def restore(self, state: TrainingState, *_: Any) -> None:
        self.state = state


def _accept(_about: Mapping[str, JsonValue]) -> None:
    pass


def load_training_state(folder: Path, report: Callable[[str], None]) -> TrainingState | None:
    loader, unused = _Loader(), cast("Any", None)
    loader.load(folder, model=unused, optimizer=unused, accept=_accept, report=report)
    return loader.state
