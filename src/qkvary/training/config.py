"""Configurations of training and of runs: plain values, validated on construction. Torch-free."""

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self, get_args

from qkvary.arch.canonical import (
    ADDED_LATER,
    canonical_json,
    code_of,
    from_dict,
    import_code,
    own_classes,
    stored,
    stored_as,
    to_dict,
    version_of,
)
from qkvary.arch.networks import Network
from qkvary.arch.parts import check_choices, check_sizes, check_word
from qkvary.arch.terms import CORES
from qkvary.arch.variants import Variant
from qkvary.storage.jsonvalues import JsonValue
from qkvary.tasks.config import TaskConfig
from qkvary.text.numbers import check_number, check_seed, check_whole

NUMERICS_VERSION = 2
"""Part of the key of a run. Raised by hand when results change by more than rounding errors."""
ROUNDING_VERSION = 3
"""Logged, but not in the key of a run. Raised by hand when the last bits of results change."""

OptimizerName = Literal["adam", "adamw"]
ScheduleName = Literal[
    "constant", "cosine_warmup", "cosine", "inverse_sqrt", "multistep", "one_cycle"
]
Decay = Literal["all", "matrices"]
Precision = Literal["full", "bf16"]
OnNonfinite = Literal["stop", "skip"]
Strategy = Literal["ddp", "fsdp"]
"""``ddp``: each process has the full network. ``fsdp``: each has some rows of every weight."""
TestAt = Literal["last", "best"]
"""The step whose network is tested: the last one, or the one with the best validation metric."""

ONE_CYCLE_DIP = 0.1
"""Amount by which ``one_cycle`` lowers the first beta at the peak of the learning rate."""

SKIP_WINDOW = 100
"""Number of recent steps among which skipped steps are counted."""


@stored("OptimizerConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """Adam, or Adam with decoupled weight decay."""

    name: OptimizerName = "adam"
    """``adam`` adds weight decay to the gradient, ``adamw`` applies it to the weights."""
    learning_rate: float
    """Peak learning rate, which the schedule scales."""
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    """Weight decay. With ``decay_by_variant``, the factor of a variant multiplies it."""
    decay: Decay = "all"
    """The parameters with weight decay: all, or only those with at least two dimensions."""
    decay_by_variant: bool = True
    """Whether to multiply the weight decay by the factor of a variant. As published, identity
    queries have 2^-5 in place of 0.1. If False, all variants have the same weight decay."""
    gradient_clip: float | None = None
    """Maximum total gradient norm; None disables clipping."""

    def __post_init__(self) -> None:
        check_word("optimizer", self.name, get_args(OptimizerName))
        check_choices(self)
        if not 0.0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {self.learning_rate}")
        if len(self.betas) != 2 or not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas}")
        if not self.eps > 0.0:
            raise ValueError(f"eps must be positive, got {self.eps}")
        check_number("weight_decay", self.weight_decay, low=0, high=math.inf)
        if self.gradient_clip is not None and not self.gradient_clip > 0.0:
            raise ValueError(f"gradient_clip must be positive or None, got {self.gradient_clip}")

    def decay_of(self, variant: Variant) -> float:
        """Return the weight decay of a layer of ``variant``."""
        factor = variant.weight_decay_factor if self.decay_by_variant else 1.0
        return self.weight_decay * factor


@stored("ScheduleConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """Learning rate schedule."""

    name: ScheduleName = "constant"
    """``constant``: the peak at all steps. ``cosine_warmup``: the cosine of the synthetic
    experiments, multiplied by the warm-up. ``cosine``: the cosine of language models, which begins
    after the warm-up.
    ``inverse_sqrt``: the schedule of the first Transformer. ``multistep``: falls at given steps.
    ``one_cycle``: rises for a quarter of the steps and then falls, while the first beta moves the
    other way."""
    warmup_steps: int = 0
    """Number of steps until the factor of the warm-up is 1."""
    floor: float = 0.0
    """Final learning rate of the ``cosine`` schedule, as a fraction of the peak."""
    decay_steps: int | None = None
    """Step at which the ``cosine`` schedule reaches its floor; None for the last step."""
    milestones: tuple[int, ...] = field(default=(), metadata=ADDED_LATER)
    """The steps at which ``multistep`` multiplies the learning rate by ``gamma``."""
    gamma: float = field(default=0.1, metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        check_word("schedule", self.name, get_args(ScheduleName))
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must not be negative, got {self.warmup_steps}")
        if self.name == "multistep" and (
            not self.milestones or list(self.milestones) != sorted({*self.milestones})
        ):
            raise ValueError(
                f"the multistep schedule needs growing milestones, got {self.milestones}"
            )
        if self.name != "multistep" and self.milestones:
            raise ValueError(f"milestones require the schedule multistep, got {self.name}")
        if self.name in ("constant", "multistep", "one_cycle") and self.warmup_steps:
            raise ValueError(
                f"the {self.name} schedule has no warm-up, got warmup_steps={self.warmup_steps}"
            )
        if self.name == "inverse_sqrt" and not self.warmup_steps:
            raise ValueError("the inverse_sqrt schedule needs a warm-up, got warmup_steps=0")
        if self.name != "cosine" and (self.floor or self.decay_steps is not None):
            raise ValueError(
                f"floor and decay_steps require the schedule cosine, got {self.name} with "
                f"{self.floor} and {self.decay_steps}"
            )
        check_number("floor", self.floor, low=0, high=1)
        if self.decay_steps is not None and self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f"decay_steps must be greater than the {self.warmup_steps} warmup_steps, "
                f"got {self.decay_steps}"
            )


@stored("TemperatureSchedule")
@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureSchedule:
    """Annealing of the softmax temperature, which ends at the variant's own temperature.

    After t of S steps, scores are divided by tau(t) = T start^(1 - min(1, t/S)), where T is the
    temperature of the variant. From the first step on, tau changes geometrically from T start to T.

    Source: paper 1, section 2.5, mentions annealing but gives no schedule. This schedule is our
        choice.
    """

    start: float
    """The temperature at the first step, as a multiple of the variant's temperature."""
    steps: int | None = None
    """The number S of steps of the annealing; None for all steps of the run."""

    def __post_init__(self) -> None:
        if not 0.0 < self.start < math.inf:
            raise ValueError(f"start must be positive and finite, got {self.start}")
        check_sizes(self, "steps")


@stored("GuardConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """Handling of non-finite steps, large gradients and diverging runs."""

    on_nonfinite: OnNonfinite = "stop"
    """Response to a non-finite loss or gradient: ``stop`` ends the run before the weights are
    updated, and ``skip`` skips the step."""
    max_skips: int = 3
    """Maximum number of skipped steps among the last 100; one more ends the run."""
    skip_gradient_norm: float | None = None
    """Steps with a larger gradient norm are skipped without counting towards ``max_skips``; None
    disables this."""
    spikes: bool = True
    """Whether a loss that stays far above its usual level ends the run."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_whole("max_skips", self.max_skips, low=0, high=SKIP_WINDOW - 1)
        if self.skip_gradient_norm is not None and not self.skip_gradient_norm > 0.0:
            raise ValueError(
                f"skip_gradient_norm must be positive or None, got {self.skip_gradient_norm}"
            )


@stored("ExecutionConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionConfig:
    """Settings for executing a training step.

    These settings affect time, memory and rounding errors. Apart from rounding errors, they do not
    change results.
    """

    micro_batch_size: int | None = None
    """Examples per forward pass; None for the whole batch of a process. Gradients of micro-batches
    are accumulated, and weighted by the number of counted targets."""
    precision: Precision = "full"
    """``bf16`` multiplies matrices in bfloat16 (autocast); weights keep their type."""
    compile: bool = False
    recompute_blocks: bool = False
    """Whether to store only the input of each block and recompute the block in the backward pass
    (activation checkpointing)."""
    threads: int = 1
    """CPU threads of each process. Fixed, because their number changes the last bits of sums."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_sizes(self, "threads", "micro_batch_size")


@stored("Way")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSettings:
    """The settings for executing training steps, and the device.

    A run can be resumed with other execution settings.
    """

    config: ExecutionConfig = field(metadata=stored_as("execution"))
    device: str

    def differences(self, other: "ExecutionSettings") -> dict[str, list[JsonValue]]:
        """Return the settings that differ, each with its values in ``self`` and ``other``."""
        ours, theirs = (
            {"device": one.device, **dataclasses.asdict(one.config)} for one in (self, other)
        )
        return {name: [ours[name], theirs[name]] for name in ours if ours[name] != theirs[name]}


@stored("TrainingConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """The configuration of training, without the task and the network."""

    steps: int
    batch_size: int
    """Examples per step, over all processes."""
    optimizer: OptimizerConfig
    schedule: ScheduleConfig = ScheduleConfig()
    evaluate_every: int
    """Steps between evaluations on the validation split; the last step is always evaluated."""
    log_every: int = 10
    """Number of steps over which each logged training loss is averaged."""
    solve_threshold: float | None = None
    """Validation metric at which the task counts as solved; None if there is no such value."""
    stop_when_solved: bool = False
    """Whether to end the run at the first evaluation that finds the task solved."""
    guards: GuardConfig = GuardConfig()
    execution: ExecutionConfig = ExecutionConfig()
    temperature: TemperatureSchedule | None = field(default=None, metadata=ADDED_LATER)
    """Annealing of the softmax temperature; None keeps the temperature of the variant."""
    test_at: TestAt = field(default="last", metadata=ADDED_LATER)
    """The step whose network is tested: the ``last`` step, or the first step with the ``best``
    validation metric. In both cases, the run returns the network of the last step."""

    def __post_init__(self) -> None:
        if self.temperature is not None and self.execution.compile:
            raise ValueError(
                "expected compile=False with an annealed temperature, got compile=True, which "
                "would compile the network again at every step"
            )
        if self.temperature is not None and (
            self.stop_when_solved or (self.temperature.steps or 0) > self.steps
        ):
            raise ValueError(
                "expected a run that ends at the variant's own temperature, got a run that may end "
                f"before the {self.temperature.steps or self.steps} steps of the annealing"
            )
        check_choices(self)
        check_sizes(self, "steps", "batch_size", "evaluate_every", "log_every")
        if self.stop_when_solved and self.solve_threshold is None:
            raise ValueError("stop_when_solved needs a solve_threshold, got None")
        if self.schedule.name == "one_cycle" and self.optimizer.betas[0] < ONE_CYCLE_DIP:
            raise ValueError(
                f"the one_cycle schedule lowers the first beta by {ONE_CYCLE_DIP}, got "
                f"{self.optimizer.betas[0]}"
            )

    def temperature_factor(self, step: int) -> float:
        """Return tau/T after ``step`` steps. This factor multiplies the variant's temperature T."""
        if self.temperature is None:
            return 1.0
        done = min(1.0, step / (self.temperature.steps or self.steps))
        return self.temperature.start ** (1.0 - done)


@stored("RunConfig")
@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Complete configuration of a training run.

    Runs with equal configurations give exactly the same results.
    """

    task: TaskConfig
    network: Network
    training: TrainingConfig
    seed: int
    """Seed of the initial weights, the order of the examples and the dropout."""
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        check_choices(self)
        check_seed(self.seed)
        if self.training.temperature is None:
            return
        for core in sorted({layer.variant.core for layer in self.network.layers}):
            if "temperature" not in CORES[core].fields:
                raise ValueError(
                    "expected variants with a softmax temperature in a run that anneals the "
                    f"temperature, got the core {core}, which has none"
                )

    @property
    def code(self) -> tuple[str, ...]:
        """The user's files and modules that another process must import for this run."""
        return code_of(own_classes(self.network, self.task))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the run as plain values, with a list of the user's files and modules.

        Unpickling imports these before it rebuilds the run.
        """
        return _make_run, (self.code, to_dict(self))

    @property
    def threads(self) -> int:
        """CPU threads of each process."""
        return self.training.execution.threads

    @property
    def sequence_length(self) -> int:
        """Number of tokens in one sequence. Images have the class token and one token per patch."""
        return self.task.count_tokens(self.network)

    @property
    def tokens_per_step(self) -> int:
        """Number of tokens that all processes together read in one step."""
        return self.training.batch_size * self.sequence_length

    @property
    def execution_settings(self) -> ExecutionSettings:
        """The settings for executing the run, and its device."""
        return ExecutionSettings(config=self.training.execution, device=self.device)

    def with_execution_settings(self, settings: ExecutionSettings) -> Self:
        """Return the same run with other execution settings."""
        training = dataclasses.replace(self.training, execution=settings.config)
        return dataclasses.replace(self, training=training, device=settings.device)

    @cached_property
    def run_key(self) -> str:
        """The sha256 that identifies this run in a store."""
        data = self.task.data_fingerprint
        identity = f"{canonical_json(self, identity=True)}\n{data}\nnumerics {NUMERICS_VERSION}\n"
        for kind in own_classes(self.network, self.task):
            identity += f"{kind.__name__} {version_of(kind)}\n"
        return hashlib.sha256(identity.encode()).hexdigest()

    def identity(self) -> dict[str, Any]:
        """Return the stored form of the run: its key, and all values that determine the key."""
        return {
            "run": to_dict(self),
            "data_fingerprint": self.task.data_fingerprint,
            "numerics_version": NUMERICS_VERSION,
            "run_key": self.run_key,
        }


def _make_run(code: Sequence[str], fields: dict[str, Any]) -> RunConfig:
    import_code(code)
    return from_dict(RunConfig, fields)
