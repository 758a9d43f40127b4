"""Builds the study of ``qkvary train`` from a preset, a prepared set and overrides. Torch-free."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from qkvary.storage.errors import UsageError
from qkvary.studies.study import Setting, Study
from qkvary.tasks.config import LanguageTaskConfig, Protocol
from qkvary.training.config import (
    ExecutionConfig,
    OnNonfinite,
    TrainingConfig,
)
from qkvary.training.presets import Preset

VALIDATIONS = 20
"""Number of validations of a shortened run."""
VALIDATION_TOKENS = 65_536
"""Tokens per validation of a shortened run, or if the preset does not specify them."""
MOST_SCORED = 0.5
"""Tokens that the validations of a shortened run score together, as a share of those that it trains
on; the final test scores as many at most where this makes validations smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOverrides:
    """Overrides of a preset; None keeps its value."""

    steps: int | None = None
    """Optimizer steps; fewer steps shorten warm-up and validation intervals too."""
    batch_size: int | None = None
    """Rows per step, over all processes."""
    context: int | None = None
    """Tokens per row."""
    learning_rate: float | None = None
    """Peak learning rate."""
    evaluate_every: int | None = None
    """Steps between validations."""
    validation_tokens: int | None = None
    """Tokens per validation."""
    test_tokens: int | None = None
    """Tokens scored at the end; all by default."""
    on_nonfinite: OnNonfinite | None = None
    """Handling of non-finite steps."""
    spike_guard: bool | None = None
    """Whether a loss that stays far above its usual level ends a run."""
    protocol: Protocol | None = None
    """Arrangement of documents in rows."""
    document_mask: bool = False
    """Whether tokens attend to their own document only."""
    execution: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Overrides of the execution: values by the names of ``ExecutionConfig``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReference:
    """A reference to a prepared data set."""

    name: str
    """Name for display."""
    folder: str
    """Folder."""
    fingerprint: str
    """sha256 of the set."""
    vocabulary: int
    """Size of the vocabulary."""
    has_test: bool = True
    """Whether the set has a test split; without one, the validation split is scored at the end."""


def training_study(
    preset: Preset,
    data: DataReference,
    *,
    variants: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (0,),
    overrides: TrainingOverrides = TrainingOverrides(),
    device: str = "cpu",
    dtype: Literal["float32", "float64"] = "float32",
) -> Study:
    """Return the study that trains a preset.

    Args:
        preset: The preset.
        data: The prepared set.
        variants: Labels, the first of which is the baseline; by default the preset's variant.
        seeds: Seeds of the runs.
        overrides: Overrides of the preset.
        device: Device of the runs.
        dtype: Type of the weights.

    Raises:
        UsageError: if the preset is limited to another variant, or an override is invalid.
        ValueError: if a variant is unknown or invalid for the network.
    """
    chosen = [preset.with_variant(label) for label in variants] or [preset]
    labels = tuple(found.variant for found in chosen)
    first = chosen[0].with_vocabulary(data.vocabulary)
    if overrides.context is not None:
        network = replace(first.network, max_tokens=overrides.context)
        first = replace(first, network=network)
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
        description=_describe([first, *chosen[1:]], setting.training, data),
        settings=(setting,),
        variants=labels,
        baseline=labels[0],
        seeds=seeds,
        device=device,
        dtype=dtype,
    )


def _task(preset: Preset, data: DataReference, overrides: TrainingOverrides) -> LanguageTaskConfig:
    task = preset.task(data=data.folder, data_sha256=data.fingerprint)
    reported = preset.reported_step or preset.training.steps
    whole = overrides.steps is None or overrides.steps >= reported
    usual = (preset.validation_tokens if whole else None) or VALIDATION_TOKENS
    tested = None
    if overrides.steps is not None and overrides.steps < preset.training.steps:
        rows = overrides.steps * (overrides.batch_size or preset.training.batch_size)
        most = max(1, int(MOST_SCORED * rows / VALIDATIONS)) * preset.context
        if most < VALIDATION_TOKENS:
            usual, tested = most, most * VALIDATIONS
    return replace(
        task,
        protocol=overrides.protocol or task.protocol,
        document_mask=overrides.document_mask,
        validation_tokens=overrides.validation_tokens or usual,
        test_tokens=overrides.test_tokens or tested,
        has_test=data.has_test,
    )


def _training(training: TrainingConfig, overrides: TrainingOverrides) -> TrainingConfig:
    steps = overrides.steps or training.steps
    short = steps < training.steps
    schedule = training.schedule
    warmup = min(schedule.warmup_steps, max(1, steps // 10)) if short else schedule.warmup_steps
    every = min(training.evaluate_every, max(1, steps // VALIDATIONS))
    rate, guards = overrides.learning_rate, training.guards
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
        guards=replace(
            guards,
            on_nonfinite=overrides.on_nonfinite or guards.on_nonfinite,
            spikes=guards.spikes if overrides.spike_guard is None else overrides.spike_guard,
        ),
        execution=_execution(training.execution, overrides.execution, batch),
    )


def _execution(
    execution: ExecutionConfig, overrides: Mapping[str, Any], batch_size: int
) -> ExecutionConfig:
    given = {name: value for name, value in overrides.items() if value is not None}
    if given.get("micro_batch_size", 0) > batch_size:
        raise UsageError(
            f"expected a micro-batch of at most the {batch_size:,} rows of a step, got "
            f"{given['micro_batch_size']:,}"
        )
    changed = replace(execution, **given)
    micro = changed.micro_batch_size
    return replace(changed, micro_batch_size=None if micro is None else min(micro, batch_size))


def _describe(presets: Sequence[Preset], training: TrainingConfig, data: DataReference) -> str:
    preset = presets[0]
    remarks = dict.fromkeys(remark.text for one in presets for remark in one.remarks)
    tokens = training.steps * training.batch_size * preset.context
    rows = f"{training.batch_size:,} rows of {preset.context:,} tokens"
    parts = [
        f"{training.steps:,} steps of {rows}: {tokens:,} tokens.",
        f"Source: {preset.source}.",
        *(f"{remark[:1].upper()}{remark[1:].rstrip('.')}." for remark in remarks),
    ]
    if not data.has_test:
        parts.append(f"{data.name} has no test split: its validation split is scored at the end.")
    return " ".join(parts)
