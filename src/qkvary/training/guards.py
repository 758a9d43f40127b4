"""Decides from losses and gradient norms whether to skip a step or end a diverged run.

The guards' state is part of the run's state, so a resumed run decides like an uninterrupted one.
Torch-free.
"""

import math
from dataclasses import dataclass, field
from statistics import median

from qkvary.storage.errors import DivergedError
from qkvary.training.config import SKIP_WINDOW, GuardConfig

LOSS_WINDOW = 100
"""Recent losses that define the usual level."""
OUTLIER_DEVIATIONS = 8.0
"""A loss this many median absolute deviations above the median is an outlier."""
LONGEST_SPIKE = 50
"""Consecutive outliers after which the run counts as diverged."""
MIN_OUTLIER_SHARE = 0.1
"""Losses below this fraction of the first loss are never outliers: the losses of a nearly solved
task vary by large factors."""


@dataclass(slots=True, kw_only=True)
class GuardState:
    """State of the guards."""

    first_loss: float | None = None
    """Loss of the first step."""
    usual: list[float] = field(default_factory=list[float])
    """The latest losses that are not outliers."""
    far_off: int = 0
    """Number of consecutive outliers so far."""
    skipped: list[int] = field(default_factory=list[int])
    """Recent steps skipped because they were not finite."""
    large: int = 0
    """Number of steps skipped because their gradient was too large."""


class Guards:
    """Checks each step before the weights are updated."""

    def __init__(self, config: GuardConfig, state: GuardState) -> None:
        """Continue from ``state``.

        Args:
            config: The limits.
            state: Updated in place.
        """
        self.config, self.state = config, state

    def allows(self, step: int, *, loss: float, norm: float) -> bool:
        """Return whether a step may update the weights; False skips it.

        Args:
            step: Counted from 0.
            loss: Loss of the step, over all processes.
            norm: Total gradient norm before clipping.

        Raises:
            DivergedError: if the run must end before this update.
        """
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._skip(step, f"loss {loss}" if not math.isfinite(loss) else f"gradient norm {norm}")
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
            raise DivergedError(f"{what} at step {step}; the weights before it were kept")
        recent = [skipped for skipped in self.state.skipped if step - skipped < SKIP_WINDOW]
        self.state.skipped = [*recent, step]
        if len(self.state.skipped) > self.config.max_skips:
            raise DivergedError(
                f"{what} at step {step}, and {len(recent)} of the {SKIP_WINDOW} steps before it "
                "were not finite either; the weights before it were kept"
            )

    def _check_spike(self, step: int, loss: float) -> None:
        state = self.state
        if state.first_loss is None:
            state.first_loss = loss
        if loss > MIN_OUTLIER_SHARE * state.first_loss and self._is_outlier(loss):
            state.far_off += 1
            if state.far_off >= LONGEST_SPIKE:
                raise DivergedError(
                    f"the loss was far above its usual level (median {median(state.usual):.4g}) "
                    f"for {LONGEST_SPIKE} steps, {loss:.4g} at step {step}; lower the learning "
                    "rate, or disable this guard (`qkvary train --no-spike-guard`)"
                )
            return
        state.far_off = 0
        state.usual = [*state.usual[1 - LOSS_WINDOW :], loss]

    def _is_outlier(self, loss: float) -> bool:
        usual = self.state.usual
        if len(usual) < LOSS_WINDOW:
            return False
        middle = median(usual)
        spread = median(abs(value - middle) for value in usual)
        return loss > middle + OUTLIER_DEVIATIONS * spread
