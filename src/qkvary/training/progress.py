"""Where a run stands: what a watcher is told, and what a checkpoint must remember. Torch-free."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from qkvary.storage.jsonvalues import JsonValue
from qkvary.training.guards import GuardState

Phase = Literal["training", "evaluation", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One piece of news from a run, for whoever watches."""

    step: int
    """Steps made."""
    steps: int
    """Steps of the whole run."""
    loss: float | None = None
    """Latest training loss, averaged over an interval of the log."""
    warning: str = ""
    """A sentence about something that was repaired, such as a damaged checkpoint."""


@dataclass(slots=True, kw_only=True)
class RunState:
    """What changes in a run besides weights and optimizer, down to the last bit."""

    step: int = 0
    """Steps made."""
    loss_sum: float = 0.0
    """Sum of the training losses that are not in the log yet."""
    loss_count: int = 0
    """How many they are."""
    train_loss: float = math.nan
    """Mean training loss of the last interval of the log."""
    validation: dict[str, float] = field(default_factory=dict[str, float])
    """The latest validation."""
    steps_to_solve: int | None = None
    """Step of the first validation that found the task solved."""
    seconds: dict[str, float] = field(
        default_factory=lambda: {"training": 0.0, "evaluation": 0.0, "other": 0.0}
    )
    """Seconds spent so far, by phase."""
    cpu_seconds: float = 0.0
    """Processor seconds spent so far."""
    log_gaps: list[list[int]] = field(default_factory=list[list[int]])
    """Between which steps lines of the log are missing, because it was damaged."""
    guards: GuardState = field(default_factory=GuardState)
    """What the guards of the run remember."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunState:
        """Return the state that ``to_json`` gave."""
        state = cls(**{name: value for name, value in values.items() if name != "guards"})
        state.guards = GuardState(**values["guards"])
        return state


class Stopwatch:
    """Shares the seconds of a run out among its phases."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._mark = time.perf_counter()
        self._cpu_mark = time.process_time()

    def lap(self, phase: Phase) -> None:
        """Count what passed since the last lap as ``phase``."""
        now, cpu = time.perf_counter(), time.process_time()
        self._state.seconds[phase] += now - self._mark
        self._state.cpu_seconds += cpu - self._cpu_mark
        self._mark, self._cpu_mark = now, cpu


def _nothing(_told: object) -> None:
    """Do nothing with what is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watchers:
    """Who is told what of a run, and what it is asked on the way."""

    on_event: Callable[[Event], None] = _nothing
    """Told how it goes, at most four times a second."""
    on_log: Callable[[Mapping[str, JsonValue]], None] = _nothing
    """Told every entry of the log as it is written."""
    sample: Callable[[Any], str] | None = None
    """Asked at each validation for something that the network says, for the log. It must not touch
    the global generator's state for longer than it takes."""


NOBODY = Watchers()
"""Nobody is told anything."""
