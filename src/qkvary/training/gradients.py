"""The gradient of one step, and whether it may change the weights.

It is the gradient of the mean over all counted targets of the step, however the batch is split over
micro-batches and processes: each micro-batch is weighted by its share of those targets. From losses
and gradient norms a guard skips a step, or ends a diverged run; its state is part of the state of
the run, so a resumed run decides like an uninterrupted one. Knows no optimizer.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor, nn

from qkvary.storage.errors import DivergedError, UsageError
from qkvary.tasks.contract import Batch, Task
from qkvary.training.config import SKIP_WINDOW, GuardConfig, RunConfig
from qkvary.training.distribution import Distribution


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """Return the seed of the global generator for one step on one rank."""
    purpose = f"qkvary step {seed} {step}" + (f" rank {rank}" if rank else "")
    digest = hashlib.sha256(purpose.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def never(_done: float) -> bool:
    """Return False: the step is not given up."""
    return False


class Gradients:
    """Computes the gradient of each step."""

    def __init__(
        self, run: RunConfig, task: Task, wrapped: nn.Module, distribution: Distribution
    ) -> None:
        """Choose the micro-batch size.

        Args:
            run: The run.
            task: Supplies batches and their loss.
            wrapped: The module that computes the loss.
            distribution: The processes that train together.

        Raises:
            UsageError: if the batch size is not divisible by the number of processes.
        """
        self.run, self.task, self.wrapped = run, task, wrapped
        self.distribution = distribution
        whole, size = run.training.batch_size, distribution.size
        if whole % size:
            raise UsageError(
                f"expected a batch size divisible by the {size} processes, got {whole}"
            )
        self.rows_per_process = whole // size
        self.micro_batch_size = min(
            run.training.execution.micro_batch_size or self.rows_per_process, self.rows_per_process
        )

    def find(self, step: int, stop: Callable[[float], bool] = never) -> float | None:
        """Accumulate the gradient of a step in the parameters and return the loss.

        Args:
            step: The step.
            stop: Called between micro-batches with the share of them that is done; if it returns
                True, the step is given up. Not called where other processes would wait for this
                one.

        Returns:
            ``None`` for a step that was given up; its gradient is incomplete.
        """
        distribution = self.distribution
        _seed_everything(step_seed(self.run.seed, step, distribution.rank), self.run.device)
        batches = list(self._micro_batches(step))
        counts = [batch.counted for batch in batches]
        (total,) = distribution.all_reduce([float(sum(counts))])
        weights = [count / total if total else 0.0 for count in counts]
        means: list[Tensor] = []
        for number, (batch, weight) in enumerate(zip(batches, weights, strict=True), start=1):
            if number > 1 and distribution.size == 1 and stop((number - 1) / len(batches)):
                return None
            is_last = number == len(batches)
            with nullcontext() if is_last else distribution.no_sync(self.wrapped):
                with self.precision():
                    mean = self.task.loss(self.wrapped, batch.to(self.run.device))
                # Processes average their gradients, but the weighted sum is needed.
                (mean * (weight * distribution.size)).backward()
            means.append(mean.detach())
        # Read at the end: a GPU then computes the micro-batches without waiting in between.
        loss = 0.0
        for mean, weight in zip(torch.stack(means).tolist(), weights, strict=True):
            loss += mean * weight
        return distribution.all_reduce([loss])[0]

    def precision(self) -> AbstractContextManager[object]:
        """Return the autocast context for every call of the network."""
        if self.run.training.execution.precision == "full":
            return nullcontext()
        return torch.autocast(torch.device(self.run.device).type, torch.bfloat16)

    def _micro_batches(self, step: int) -> Iterator[Batch]:
        training, first = self.run.training, self.distribution.rank * self.rows_per_process
        for start in range(first, first + self.rows_per_process, self.micro_batch_size):
            rows = slice(start, min(start + self.micro_batch_size, first + self.rows_per_process))
            yield self.task.batch(step, training.batch_size, self.run.seed, rows)


def _seed_everything(seed: int, device: str) -> None:
    if device == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


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
