"""The progress of a run: its guards, its state between two steps, callbacks and timing.

The guards use losses and gradient norms to decide whether to skip a step or to end a diverged run.
The state of the guards is part of the run's state, so a resumed run decides like an uninterrupted
run. Torch-free.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from qkvary.storage.errors import DivergedError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.text.progress_line import ignore
from qkvary.training.config import SKIP_WINDOW, GuardConfig

if TYPE_CHECKING:
    from qkvary.tasks.contract import Generate

LOSS_WINDOW = 100
"""Number of recent losses that define the usual level."""
OUTLIER_DEVIATIONS = 8.0
"""A loss this many median absolute deviations above the median is an outlier."""
LONGEST_SPIKE = 50
"""Number of consecutive outliers after which the run counts as diverged."""
MIN_OUTLIER_SHARE = 0.1
"""Fraction of the first loss below which a loss is never an outlier. The losses of a nearly solved
task vary by large factors."""
Phase = Literal["training", "evaluation", "other"]


@dataclass(slots=True, kw_only=True)
class GuardState:
    """State of the guards."""

    first_loss: float | None = None
    usual: list[float] = field(default_factory=list[float])
    far_off: int = 0
    """Number of consecutive outliers so far."""
    skipped: list[int] = field(default_factory=list[int])
    """Recent steps that were skipped because their loss or gradient was not finite."""
    large: int = 0
    """Number of steps that were skipped because their gradient was too large."""


class Guards:
    """Checks each step before the weights are updated."""

    def __init__(self, config: GuardConfig, state: GuardState) -> None:
        self.config, self.state = config, state

    def allows(self, step: int, *, loss: float, norm: float) -> bool:
        """Return whether a step may update the weights. Otherwise the step is skipped."""
        if not (math.isfinite(loss) and math.isfinite(norm)):
            is_loss = not math.isfinite(loss)
            self._skip(step, f"the loss is {loss}" if is_loss else f"the gradient norm is {norm}")
            return False
        if self.config.spikes:
            self._check_spike(step, loss)
        limit = self.config.skip_gradient_norm
        if limit is not None and norm > limit:
            self.state.large += 1
            return False
        return True

    def _skip(self, step: int, what: str) -> None:
        if self.config.on_nonfinite == "stop":
            raise DivergedError(f"{what} at step {step}; the earlier weights were kept")
        recent = [skipped for skipped in self.state.skipped if step - skipped < SKIP_WINDOW]
        self.state.skipped = [*recent, step]
        if len(self.state.skipped) > self.config.max_skips:
            raise DivergedError(
                f"{what} at step {step}; the loss or gradient was also not finite in {len(recent)} "
                f"of the {SKIP_WINDOW} steps before it; the earlier weights were kept"
            )

    def _check_spike(self, step: int, loss: float) -> None:
        state = self.state
        if state.first_loss is None:
            state.first_loss = loss
        is_outlier = False
        if loss > MIN_OUTLIER_SHARE * state.first_loss and len(state.usual) >= LOSS_WINDOW:
            middle = median(state.usual)
            spread = median(abs(value - middle) for value in state.usual)
            is_outlier = loss > middle + OUTLIER_DEVIATIONS * spread
        if is_outlier:
            state.far_off += 1
            if state.far_off >= LONGEST_SPIKE:
                raise DivergedError(
                    f"the loss was far above its usual level (median {median(state.usual):.4g}) "
                    f"for {LONGEST_SPIKE} steps, and was {loss:.4g} at step {step}; lower the "
                    "learning rate, or disable this guard (`qkvary train --no-spike-guard`)"
                )
            return
        state.far_off = 0
        state.usual = [*state.usual[1 - LOSS_WINDOW :], loss]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A progress event of a run."""

    step: int
    """Completed steps."""
    steps: int
    part: float = 0.0
    """Share of the micro-batches of the next step that are done."""
    loss: float | None = None
    """The training loss, averaged over the steps since the last log entry."""
    warning: str = ""
    """A warning, such as a damaged checkpoint that was skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestStep:
    """The step with the best validation metric so far, the first one if several are equal."""

    step: int
    metric: float
    test: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class RunState:
    """The state of a run except weights and optimizer, as stored in checkpoints."""

    step: int = 0
    """Completed steps."""
    loss_sum: float = 0.0
    """Sum of the training losses that are not logged yet."""
    loss_count: int = 0
    train_loss: float = math.nan
    """Mean training loss of the last log interval."""
    validation: dict[str, float] = field(default_factory=dict[str, float])
    best: BestStep | None = None
    """The best validation so far, if ``test_at`` is ``best``."""
    steps_to_solve: int | None = None
    """Step of the first validation that found the task solved."""
    seconds: dict[str, float] = field(
        default_factory=lambda: {"training": 0.0, "evaluation": 0.0, "other": 0.0}
    )
    cpu_seconds: float = 0.0
    guards: GuardState = field(default_factory=GuardState)

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "RunState":
        """Return the state that ``to_json`` wrote."""
        fields: dict[str, Any] = {**values, "guards": GuardState(**values["guards"])}
        # States of qkvary 0.2 lack ``best`` and have ``log_gaps``.
        fields.pop("log_gaps", None)
        if fields.get("best") is not None:
            fields["best"] = BestStep(**fields["best"])
        return cls(**fields)

    def metrics(self, test: Mapping[str, float]) -> dict[str, float | int | None]:
        """Return the metrics of the run, including the given scores of the test."""
        best = {} if self.best is None else {"best_step": self.best.step}
        return {
            "steps": self.step,
            "steps_to_solve": self.steps_to_solve,
            "final_train_loss": self.train_loss,
            **{f"validation_{name}": value for name, value in self.validation.items()},
            **{f"test_{name}": value for name, value in test.items()},
            **best,
        }

    def timing(self) -> dict[str, float]:
        """Return the seconds of each phase, and the steps per second of training."""
        training_seconds = self.seconds["training"]
        return {
            "training_seconds": training_seconds,
            "evaluation_seconds": self.seconds["evaluation"],
            "total_seconds": sum(self.seconds.values()),
            "cpu_seconds": self.cpu_seconds,
            "steps_per_second": self.step / training_seconds if training_seconds else 0.0,
        }


class Stopwatch:
    """Measures the seconds that a run spends in each phase."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self._mark = time.perf_counter()
        self._cpu_mark = time.process_time()

    def lap(self, phase: Phase) -> None:
        """Add the time since the last lap to ``phase``."""
        now, cpu = time.perf_counter(), time.process_time()
        self.state.seconds[phase] += now - self._mark
        self.state.cpu_seconds += cpu - self._cpu_mark
        self._mark, self._cpu_mark = now, cpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """Functions that a run calls during training."""

    on_event: Callable[[Event], None] = ignore
    """Called with progress events, at most four times a second, and with warnings."""
    on_log: Callable[[Mapping[str, JsonValue]], None] = ignore
    generate: "Generate | None" = None
    """The function for greedy decoding, which some tasks need for their scores."""
    sample: Callable[[Any], str] | None = None
    """Generates a text from the network. The text is logged at each validation. The function must
    restore the state of the global random generator."""
    network_steps: frozenset[int] = frozenset()
    """Steps after which ``on_network`` is called; 0 is the state before the first step."""
    on_network: Callable[[int, Any], None] = ignore
    """Called with the number of completed steps and the network; training continues afterwards."""


NO_CALLBACKS = Callbacks()
