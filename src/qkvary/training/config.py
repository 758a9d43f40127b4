"""How one network is trained, and what makes one run: plain values, checked when made.

Nothing here imports torch: a study is listed, keyed and reported without it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from dataclasses import dataclass
from typing import Literal, Self, get_args

from qkvary.arch.canonical import identity_json, stored
from qkvary.arch.networks import Network
from qkvary.arch.variants import Variant
from qkvary.storage.jsonvalues import JsonValue
from qkvary.tasks.config import TaskConfig

NUMERICS_VERSION = 2
"""Raised by hand when a change of the code changes the numbers of a run."""

OptimizerName = Literal["adam", "adamw"]
ScheduleName = Literal["constant", "cosine_warmup", "cosine"]
Decay = Literal["all", "matrices"]
Precision = Literal["full", "bf16"]
OnNonfinite = Literal["stop", "skip"]

SKIP_WINDOW = 100
"""Steps over which skipped ones are counted."""


def _choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"unknown {what} {value!r}; choices: {', '.join(choices)}")


@stored("OptimizerConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """Adam, or Adam with decoupled weight decay."""

    name: OptimizerName = "adam"
    """``adam`` adds weight decay to the gradient, ``adamw`` applies it to the weights."""
    learning_rate: float
    """The peak; the schedule multiplies it."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the two running moments."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.0
    """Times the factor that a layer's variant asks for."""
    decay: Decay = "all"
    """Which parameters decay: all, or only those of two dimensions and more."""
    decay_by_variant: bool = True
    """Whether a variant's own factor of the weight decay applies, as published for identity
    queries (2^-5 instead of 0.1); without it all variants decay alike."""
    gradient_clip: float | None = None
    """Largest norm of all gradients together; None clips nothing."""

    def __post_init__(self) -> None:
        _choice("optimizer", self.name, get_args(OptimizerName))
        _choice("decay", self.decay, get_args(Decay))
        if not 0.0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {self.learning_rate}")
        if len(self.betas) != 2 or not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas}")
        if not self.eps > 0.0:
            raise ValueError(f"eps must be positive, got {self.eps}")
        if not self.weight_decay >= 0.0:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")
        if self.gradient_clip is not None and not self.gradient_clip > 0.0:
            raise ValueError(f"gradient_clip must be positive or None, got {self.gradient_clip}")

    def decay_of(self, variant: Variant) -> float:
        """The weight decay of a layer of a variant."""
        factor = variant.weight_decay_factor if self.decay_by_variant else 1.0
        return self.weight_decay * factor


@stored("ScheduleConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate moves over the steps of a run."""

    name: ScheduleName = "constant"
    """``constant``; ``cosine_warmup``, the cosine of the synthetic experiments, which the warm-up
    multiplies; or ``cosine``, the one of language models, which begins behind the warm-up."""
    warmup_steps: int = 0
    """Steps until the factor of the warm-up reaches one."""
    floor: float = 0.0
    """What the ``cosine`` falls to, as a share of the peak."""
    decay_steps: int | None = None
    """Step at which the ``cosine`` has fallen, where it is not the last of the run."""

    def __post_init__(self) -> None:
        _choice("schedule", self.name, get_args(ScheduleName))
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, got {self.warmup_steps}")
        if self.name == "constant" and self.warmup_steps:
            raise ValueError(
                f"the constant schedule has no warm-up, got warmup_steps={self.warmup_steps}"
            )
        if self.name != "cosine" and (self.floor or self.decay_steps is not None):
            raise ValueError(
                f"floor and decay_steps belong to the schedule cosine, got {self.name} with "
                f"{self.floor} and {self.decay_steps}"
            )
        if not 0.0 <= self.floor <= 1.0:
            raise ValueError(f"floor must lie between 0 and 1, got {self.floor}")
        if self.decay_steps is not None and self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f"decay_steps must lie behind the {self.warmup_steps} warmup_steps, "
                f"got {self.decay_steps}"
            )


@stored("GuardConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """What becomes of a step that looks wrong, and of a run that does."""

    on_nonfinite: OnNonfinite = "stop"
    """Whether a loss or gradient that is not finite ends the run before the weights are touched, or
    only skips the step."""
    max_skips: int = 3
    """So many skipped steps out of the last 100 are let pass; one more ends the run."""
    skip_gradient_norm: float | None = None
    """Steps with a larger gradient norm are skipped and not counted among ``max_skips``; None
    skips none."""
    spikes: bool = True
    """Whether a loss that stays far above what it was ends the run."""

    def __post_init__(self) -> None:
        _choice("on_nonfinite", self.on_nonfinite, get_args(OnNonfinite))
        if not 0 <= self.max_skips < SKIP_WINDOW:
            raise ValueError(
                f"max_skips must lie between 0 and {SKIP_WINDOW - 1}, got {self.max_skips}"
            )
        if self.skip_gradient_norm is not None and not self.skip_gradient_norm > 0.0:
            raise ValueError(
                f"skip_gradient_norm must be positive or None, got {self.skip_gradient_norm}"
            )


@stored("ExecutionConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionConfig:
    """How a step is computed: what changes time, memory and last bits, not what is learned."""

    micro_batch_size: int | None = None
    """Examples that go through the network at once; None for all that a process has of a step.
    Gradients of the parts are added up, each weighted by its targets that count."""
    precision: Precision = "full"
    """``bf16`` multiplies matrices in bfloat16 (autocast); weights and sums stay as they are."""
    compile: bool = False
    """Whether torch compiles the network."""
    recompute_blocks: bool = False
    """Keep each block's input only and compute the block again for its gradient."""
    threads: int = 1
    """Of a process on a CPU: fixed, because the order of a sum changes its last bits."""

    def __post_init__(self) -> None:
        _choice("precision", self.precision, get_args(Precision))
        if self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}")
        if self.micro_batch_size is not None and self.micro_batch_size < 1:
            raise ValueError(
                f"micro_batch_size must be at least 1 or None, got {self.micro_batch_size}"
            )


@stored("Way")
@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How and where steps are computed: what a run may go on with that was begun in another way."""

    execution: ExecutionConfig
    """How."""
    device: str
    """Where, as torch names it."""

    def differences(self, other: Way) -> dict[str, list[JsonValue]]:
        """What is different in another way, by its name: here and there."""
        ours, theirs = (
            {"device": way.device, **dataclasses.asdict(way.execution)} for way in (self, other)
        )
        return {name: [ours[name], theirs[name]] for name in ours if ours[name] != theirs[name]}


@stored("TrainingConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """Everything about training that is not the task or the network."""

    steps: int
    """Optimizer steps of a complete run."""
    batch_size: int
    """Examples in one step, over all processes."""
    optimizer: OptimizerConfig
    """How gradients move the weights."""
    schedule: ScheduleConfig = ScheduleConfig()
    """How the learning rate moves."""
    evaluate_every: int
    """Steps between two evaluations on the validation split; the last step always has one."""
    log_every: int = 10
    """Steps whose mean training loss makes one line of the log."""
    solve_threshold: float | None = None
    """Validation metric at which the task counts as solved; None if it has no such value."""
    stop_when_solved: bool = False
    """End the run at the evaluation that first finds the task solved."""
    guards: GuardConfig = GuardConfig()
    """What becomes of steps that look wrong."""
    execution: ExecutionConfig = ExecutionConfig()
    """How a step is computed."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "evaluate_every", "log_every"):
            value: int = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.stop_when_solved and self.solve_threshold is None:
            raise ValueError("stop_when_solved needs a solve_threshold, got None")


@stored("RunConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One training run, completely: the same value always gives the same numbers."""

    task: TaskConfig
    """What is asked."""
    network: Network
    """What answers."""
    training: TrainingConfig
    """How it learns."""
    seed: int
    """Source of the initial weights, the order of the examples and the dropout."""
    device: str = "cpu"
    """Where it computes, as torch names it."""
    dtype: Literal["float32", "float64"] = "float32"
    """Type of the weights."""

    def __post_init__(self) -> None:
        _choice("dtype", self.dtype, ("float32", "float64"))
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must lie in [0, 2**63), got {self.seed}")

    @property
    def threads(self) -> int:
        """Threads of each process."""
        return self.training.execution.threads

    @property
    def way(self) -> Way:
        """How and where it is computed."""
        return Way(execution=self.training.execution, device=self.device)

    def computed(self, way: Way) -> Self:
        """The same run, computed in another way."""
        training = dataclasses.replace(self.training, execution=way.execution)
        return dataclasses.replace(self, training=training, device=way.device)

    def run_key(self, data_fingerprint: str | None = None) -> str:
        """Return the sha256 that names this run in a store.

        Args:
            data_fingerprint: What the examples are made of; by default what the task's config
                says.
        """
        data = self.task.data_fingerprint if data_fingerprint is None else data_fingerprint
        identity = f"{identity_json(self)}\n{data}\nnumerics {NUMERICS_VERSION}\n"
        return hashlib.sha256(identity.encode()).hexdigest()
