"""When a step is skipped and when a run has diverged, from nothing but losses and norms.

Knows no tensors; what it remembers is part of a run's state, so that a resumed run decides as one
that was never stopped. Torch-free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median

from qkvary.storage.errors import DivergedError
from qkvary.training.config import SKIP_WINDOW, GuardConfig

LOSSES_REMEMBERED = 100
"""Losses that say what is usual."""
DEVIATIONS = 8.0
"""Median absolute deviations above the median, from which a loss is far off."""
LONGEST_SPIKE = 50
"""So many losses in a row that are far off mean that the run has diverged."""
HIGH = 0.1
"""Share of the first loss below which no loss is far off: a task that is nearly solved has losses
that vary by factors and mean nothing."""


@dataclass(slots=True, kw_only=True)
class GuardState:
    """What the guards remember."""

    first_loss: float | None = None
    """Loss of the first step."""
    usual: list[float] = field(default_factory=list[float])
    """The latest losses that were not far off."""
    far_off: int = 0
    """How many of the latest losses in a row are far off."""
    skipped: list[int] = field(default_factory=list[int])
    """Steps skipped because they were not finite, as far back as they count."""
    large: int = 0
    """Steps skipped because their gradient was too large."""


class Guards:
    """Decides about each step before the weights are touched."""

    def __init__(self, config: GuardConfig, state: GuardState) -> None:
        """Go on from what is remembered.

        Args:
            config: What is allowed.
            state: Kept up to date in place.
        """
        self.config, self.state = config, state

    def allows(self, step: int, *, loss: float, norm: float) -> bool:
        """Whether the weights may be changed by a step; False skips it.

        Args:
            step: Counted from 0.
            loss: Of the step, over all processes.
            norm: Of all gradients together, before clipping.

        Raises:
            DivergedError: if the run must end here, with the weights as they were.
        """
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._skip(step, f"loss {loss}" if not math.isfinite(loss) else f"gradient norm {norm}")
            return False
        if self.config.spikes:
            self._watch(step, loss)
        limit = self.config.skip_gradient_norm
        if limit is not None and norm > limit:
            self.state.large += 1
            return False
        return True

    def _skip(self, step: int, what: str) -> None:
        if self.config.on_nonfinite == "stop":
            raise DivergedError(f"{what} at step {step}; the weights before it were kept")
        recent = [earlier for earlier in self.state.skipped if step - earlier < SKIP_WINDOW]
        self.state.skipped = [*recent, step]
        if len(self.state.skipped) > self.config.max_skips:
            raise DivergedError(
                f"{what} at step {step}, and {len(recent)} of the {SKIP_WINDOW} steps before it "
                "were not finite either; the weights before it were kept"
            )

    def _watch(self, step: int, loss: float) -> None:
        state = self.state
        if state.first_loss is None:
            state.first_loss = loss
        if loss > HIGH * state.first_loss and self._is_far_off(loss):
            state.far_off += 1
            if state.far_off >= LONGEST_SPIKE:
                raise DivergedError(
                    f"the loss has been far above what it was (median {median(state.usual):.4g}) "
                    f"for {LONGEST_SPIKE} steps, {loss:.4g} at step {step}; lower the learning "
                    "rate, or switch this guard off (`qkvary train --no-spike-guard`)"
                )
            return
        state.far_off = 0
        state.usual = [*state.usual[1 - LOSSES_REMEMBERED :], loss]

    def _is_far_off(self, loss: float) -> bool:
        usual = self.state.usual
        if len(usual) < LOSSES_REMEMBERED:
            return False
        middle = median(usual)
        spread = median(abs(value - middle) for value in usual)
        return loss > middle + DEVIATIONS * spread
