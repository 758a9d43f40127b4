"""From a preset, a prepared set and a few overrides to a study of one or more variants. Torch-free.

So what ``qkvary train`` makes is a study like any other: it is stored, resumed, reported and
compared the same way.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Literal

from qkvary.data.tokenizers import Tokenizer
from qkvary.storage.errors import UsageError
from qkvary.studies.study import Setting, Study
from qkvary.tasks.config import LanguageTaskConfig, Protocol
from qkvary.training.config import (
    ExecutionConfig,
    GuardConfig,
    OnNonfinite,
    Precision,
    TrainingConfig,
)
from qkvary.training.presets import Preset

VALIDATIONS = 20
"""Validations of a run whose preset is cut short."""
VALIDATION_TOKENS = 65_536
"""Tokens of a validation, where a preset does not say how many or is cut short; the test at the end
scores every token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionOverrides:
    """What is to be different in how steps are computed; None leaves it."""

    micro_batch_size: int | None = None
    """Rows that go through the network at once."""
    precision: Precision | None = None
    """Of products."""
    compile: bool | None = None
    """Whether torch compiles the network."""
    recompute_blocks: bool | None = None
    """Whether blocks are computed again for their gradient."""
    threads: int | None = None
    """Of each process on a CPU."""

    def change(self, execution: ExecutionConfig, batch_size: int) -> ExecutionConfig:
        """Return what is wished for.

        Args:
            execution: Of the preset.
            batch_size: Rows of a step, of which no part has more.

        Raises:
            UsageError: if a part is to have more rows than a step.
        """
        if self.micro_batch_size is not None and self.micro_batch_size > batch_size:
            raise UsageError(
                f"expected a micro-batch of at most the {batch_size:,} rows of a step, got "
                f"{self.micro_batch_size:,}"
            )
        names = (field.name for field in dataclasses.fields(self))
        wished = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        changed = replace(execution, **wished)
        micro = changed.micro_batch_size
        return replace(changed, micro_batch_size=None if micro is None else min(micro, batch_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOverrides:
    """What is to be different from the preset; None leaves it."""

    steps: int | None = None
    """Optimizer steps; warm-up and validations are shortened with them."""
    batch_size: int | None = None
    """Rows of a step, over all processes."""
    context: int | None = None
    """Tokens of a row."""
    learning_rate: float | None = None
    """The peak."""
    evaluate_every: int | None = None
    """Steps between validations."""
    validation_tokens: int | None = None
    """Tokens scored in each."""
    test_tokens: int | None = None
    """Tokens scored at the end; all by default."""
    on_nonfinite: OnNonfinite | None = None
    """What becomes of steps that are not finite."""
    spike_guard: bool | None = None
    """Whether a loss that stays far above what it was ends a run."""
    protocol: Protocol | None = None
    """How rows are made of documents."""
    document_mask: bool = False
    """Whether tokens see their own document only."""
    execution: ExecutionOverrides = ExecutionOverrides()
    """How steps are computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChoice:
    """The prepared set, as far as a study must know it."""

    name: str
    """What people call it."""
    where: str
    """Its folder."""
    fingerprint: str
    """What it is."""
    tokenizer: Tokenizer
    """What made its tokens."""


def plan_training(
    preset: Preset,
    data: DataChoice,
    *,
    variants: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (0,),
    overrides: TrainingOverrides = TrainingOverrides(),
    device: str = "cpu",
    dtype: Literal["float32", "float64"] = "float32",
) -> Study:
    """Return the study that trains a preset.

    Args:
        preset: Network and training.
        data: The prepared set.
        variants: Labels; the preset's own if there is none. The first is the baseline.
        seeds: Of the runs.
        overrides: What is to be different.
        device: Where the runs compute.
        dtype: Of their weights.

    Raises:
        UsageError: if the preset is about another variant, or a wish does not fit it.
        ValueError: if a variant is unknown or has no meaning in the network.
    """
    chosen = [preset.with_variant(label) for label in variants] or [preset]
    labels = tuple(found.variant for found in chosen)
    first = _fit(chosen[0], data, overrides)
    setting = Setting(
        name=f"{preset.name} on {data.name}",
        task=_task(first, data, overrides),
        network=first.network,
        training=_training(first.training, overrides),
        keep_networks=True,
    )
    return Study(
        name=f"train {preset.name} on {data.name}",
        question=f"What does {preset.name} learn on {data.name}?",
        description=_describe(preset, setting),
        settings=(setting,),
        variants=labels,
        baseline=labels[0],
        seeds=seeds,
        device=device,
        dtype=dtype,
    )


def _fit(preset: Preset, data: DataChoice, overrides: TrainingOverrides) -> Preset:
    fitted = preset.with_vocabulary(data.tokenizer.vocabulary)
    network = fitted.network
    if overrides.context is not None:
        network = replace(network, max_tokens=overrides.context)
    return replace(fitted, network=network)


def _task(preset: Preset, data: DataChoice, overrides: TrainingOverrides) -> LanguageTaskConfig:
    task = preset.task(data=data.where, data_sha256=data.fingerprint)
    whole = overrides.steps is None or overrides.steps >= preset.training.steps
    usual = (preset.validation_tokens if whole else None) or VALIDATION_TOKENS
    return replace(
        task,
        protocol=overrides.protocol or task.protocol,
        document_mask=overrides.document_mask,
        validation_tokens=overrides.validation_tokens or usual,
        test_tokens=overrides.test_tokens,
    )


def _training(training: TrainingConfig, overrides: TrainingOverrides) -> TrainingConfig:
    steps = overrides.steps or training.steps
    short = steps < training.steps
    schedule = training.schedule
    warmup = min(schedule.warmup_steps, max(1, steps // 10)) if short else schedule.warmup_steps
    every = min(training.evaluate_every, max(1, steps // VALIDATIONS))
    rate = overrides.learning_rate
    if rate is None:
        rate = training.optimizer.learning_rate
    batch = overrides.batch_size or training.batch_size
    return replace(
        training,
        steps=steps,
        batch_size=batch,
        schedule=replace(schedule, warmup_steps=warmup),
        optimizer=replace(training.optimizer, learning_rate=rate),
        evaluate_every=overrides.evaluate_every or (every if short else training.evaluate_every),
        log_every=min(training.log_every, max(1, steps // 100)) if short else training.log_every,
        guards=_guards(training.guards, overrides),
        execution=overrides.execution.change(training.execution, batch),
    )


def _guards(guards: GuardConfig, overrides: TrainingOverrides) -> GuardConfig:
    spikes = guards.spikes if overrides.spike_guard is None else overrides.spike_guard
    return replace(
        guards, on_nonfinite=overrides.on_nonfinite or guards.on_nonfinite, spikes=spikes
    )


def _describe(preset: Preset, setting: Setting) -> str:
    training, task = setting.training, setting.task
    tokens = training.steps * training.batch_size * task.sequence_length
    rows = f"{training.batch_size:,} rows of {task.sequence_length:,} tokens"
    parts = [
        f"{training.steps:,} steps of {rows}: {tokens:,} tokens.",
        f"Source: {preset.source}.",
        *(f"{remark[:1].upper()}{remark[1:].rstrip('.')}." for remark in preset.remarks),
    ]
    return " ".join(parts)
