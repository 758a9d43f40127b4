"""Builds the study of ``qkvary train`` from a preset, a data set and options. Torch-free."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

from qkvary.arch.variants import AnyVariant
from qkvary.storage.environment import Threads, check_device
from qkvary.storage.errors import UsageError
from qkvary.storage.manifest import CHECKPOINT_SECONDS, DEFAULT_KEEP
from qkvary.studies.study import Setting, Study
from qkvary.tasks.config import LanguageTaskConfig, Protocol
from qkvary.text.names import count
from qkvary.text.numbers import Count, duration, real, whole
from qkvary.training.config import (
    ExecutionConfig,
    OnNonfinite,
    Precision,
    RunConfig,
    Strategy,
    TrainingConfig,
)
from qkvary.training.presets import Preset
from qkvary.training.trackers import TrackerName, require_tracker

if TYPE_CHECKING:
    from qkvary.data.prepared_sets import PlannedSet

VALIDATIONS = 20
"""Number of validations of a run that is shorter than its preset."""
VALIDATION_TOKENS = 65_536
"""Tokens per validation of a shortened run, or of a preset that gives no number."""
MOST_SCORED = 0.5
"""Maximum number of tokens that all validations of a shortened run score together, as a share of
its training tokens. If this limit shortens the validations, it also applies to the final test."""
MOST_PASSES = 16
"""Number of passes over a text after which a language model learns little more. Source: Muennighoff
et al. 2023, "Scaling Data-Constrained Language Models"."""
FEWEST_STEPS = 200
"""Minimum number of steps of a suggested run. To reach it, a smaller batch is suggested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionOptions:
    """Execution settings of a training; None keeps the value of the preset."""

    micro_batch_size: Count | None = None
    """Rows per forward pass, in each process."""
    precision: Precision | None = None
    """full, or bf16 for matrix products in bfloat16."""
    compile: bool | None = None
    """Compile the network with torch.compile."""
    recompute_blocks: bool | None = None
    """Recompute each block in the backward pass. This saves memory and costs a third more work."""
    threads: Threads | None = None
    """Threads on a CPU. The default is OMP_NUM_THREADS or, if this is not set, all usable cores. On
    a GPU and under torchrun, the default is 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetOptions(ExecutionOptions):
    """Changes to a preset; None keeps the value of the preset."""

    steps: Count | None = None
    """Training steps. With fewer than in the preset, warm-up and validations are shorter too."""
    minutes: float | None = None
    """Minutes of each run. The number of steps is estimated from them, for this processor."""
    batch_size: Count | None = None
    """Rows per step, over all processes."""
    context: Count | None = None
    """Tokens per row, such as 256 or 1k."""
    learning_rate: float | None = None
    """Peak learning rate."""
    evaluate_every: Count | None = None
    """Steps between validations."""
    validation_tokens: Count | None = None
    """Tokens per validation. The default is the published number; without one, or in a shortened
    run, it is at most 64k."""
    test_tokens: Count | None = None
    """Tokens of the test at the end. The default is all tokens; in a short run, it may be fewer."""
    on_nonfinite: OnNonfinite | None = None
    """Response to a non-finite loss or gradient: stop the run, or skip the step."""
    spike_guard: bool | None = None
    """End a run whose loss stays far above its earlier level."""
    protocol: Protocol | None = None
    """Arrangement of documents in rows: packed without padding, or padded-paper as in paper 1."""
    document_mask: bool = False
    """Restrict attention to tokens of the same document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions(PresetOptions):
    """Changes to a preset, and options for executing its runs."""

    tokenizer: str | None = None
    """gpt2, bytes, characters, or a tokenizer.json. The default is the preset's tokenizer."""
    device: str = "cpu"
    """Device: cpu, cuda, cuda:1, mps."""
    dtype: Literal["float32", "float64"] = "float32"
    """Number format of the weights."""
    sample: str | None = None
    """At each validation, let the network continue this text, and log the result."""
    log: TrackerName | None = None
    """Tracker to which the logs are copied. By default, none."""
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    """Seconds between two checkpoints."""
    keep: Count = DEFAULT_KEEP
    """Number of newest checkpoints to keep; at least 1."""
    allow_change: bool = False
    """Resume runs that began with another device, number of threads or micro-batch size. Such runs
    that are finished are shown, and not trained again."""
    anew: bool = False
    """Begin new runs, even if there are runs that differ only in their execution settings."""
    strategy: Strategy = "ddp"
    """Under torchrun: ddp gives every process the whole network, fsdp a shard of it."""

    def check(self) -> None:
        """Raise an error for invalid values, and for options that exclude each other."""
        check_device(self.device)
        if self.steps is not None and self.minutes is not None:
            raise UsageError("expected --steps or --minutes, got both")
        if self.allow_change and self.anew:
            raise UsageError("expected --allow-change or --anew, got both")
        if not 0.0 <= self.checkpoint_seconds < math.inf:
            raise UsageError(
                "expected a number of seconds for --checkpoint-seconds, 0 for every step, got "
                f"{self.checkpoint_seconds}"
            )
        if self.log is not None:
            require_tracker(self.log)


NO_OPTIONS = TrainingOptions()
"""Options that leave a preset as it is."""


def training_study(
    preset: Preset,
    planned: "PlannedSet",
    *,
    variants: Sequence[AnyVariant | str] = (),
    seeds: tuple[int, ...] = (0,),
    options: TrainingOptions = NO_OPTIONS,
) -> Study:
    """Return the study that trains a preset, with the first variant as baseline."""
    presets = [preset.with_variant(label) for label in variants] or [preset]
    labels = tuple(found.variant for found in presets)
    first = presets[0].with_vocabulary(planned.vocabulary)
    if options.context is not None:
        first = replace(first, network=replace(first.network, max_tokens=options.context))
    setting = Setting(
        name=f"{preset.name} on {planned.name}",
        task=_task(first, planned, options),
        network=first.network,
        training=_training(first.training, options),
        keep_networks=True,
    )
    return Study(
        name=f"train {preset.name} on {planned.name}",
        question=f"What does {preset.name} learn on {planned.name}?",
        description=_describe([first, *presets[1:]], setting, planned.name),
        settings=(setting,),
        variants=labels,
        baseline=labels[0],
        seeds=seeds,
        device=options.device,
        dtype=options.dtype,
    )


def _task(preset: Preset, planned: "PlannedSet", options: TrainingOptions) -> LanguageTaskConfig:
    reported = preset.reported_step or preset.training.steps
    data, steps = planned.prepared, options.steps
    is_whole_run = steps is None or steps >= reported
    usual = (preset.validation_tokens if is_whole_run else None) or VALIDATION_TOKENS
    tested = None
    if steps is not None and steps < preset.training.steps:
        rows = steps * (options.batch_size or preset.training.batch_size)
        most = max(1, int(MOST_SCORED * rows / VALIDATIONS)) * preset.context
        if most < VALIDATION_TOKENS:
            usual, tested = most, most * VALIDATIONS
    return LanguageTaskConfig(
        data="" if data is None else str(data.path.resolve()),
        data_sha256="" if data is None else data.fingerprint,
        context=preset.context,
        protocol=options.protocol or preset.protocol,
        document_mask=options.document_mask,
        validation_tokens=options.validation_tokens or usual,
        test_tokens=options.test_tokens or tested,
        has_test=data is None or "test" in data.splits,
    )


def _training(training: TrainingConfig, options: TrainingOptions) -> TrainingConfig:
    steps = options.steps or training.steps
    short = steps < training.steps
    schedule = training.schedule
    warmup = min(schedule.warmup_steps, max(1, steps // 10)) if short else schedule.warmup_steps
    every = min(training.evaluate_every, max(1, steps // VALIDATIONS))
    rate, guards = options.learning_rate, training.guards
    if rate is None:
        rate = training.optimizer.learning_rate
    batch = options.batch_size or training.batch_size
    return replace(
        training,
        steps=steps,
        batch_size=batch,
        schedule=replace(schedule, warmup_steps=warmup),
        optimizer=replace(training.optimizer, learning_rate=rate),
        evaluate_every=options.evaluate_every or (every if short else training.evaluate_every),
        log_every=min(training.log_every, max(1, steps // 100)) if short else training.log_every,
        guards=replace(
            guards,
            on_nonfinite=options.on_nonfinite or guards.on_nonfinite,
            spikes=guards.spikes if options.spike_guard is None else options.spike_guard,
        ),
        execution=_execution(training.execution, options, batch),
    )


def _execution(
    execution: ExecutionConfig, options: TrainingOptions, batch_size: int
) -> ExecutionConfig:
    named = {one.name: getattr(options, one.name) for one in fields(ExecutionConfig)}
    given = {name: value for name, value in named.items() if value is not None}
    if given.get("micro_batch_size", 0) > batch_size:
        raise UsageError(
            f"expected a micro-batch of at most the {batch_size:,} rows of a step, got "
            f"{given['micro_batch_size']:,}"
        )
    changed = replace(execution, **given)
    micro = changed.micro_batch_size
    return replace(changed, micro_batch_size=None if micro is None else min(micro, batch_size))


def _describe(presets: Sequence[Preset], setting: Setting, name: str) -> str:
    preset, training = presets[0], setting.training
    remarks = dict.fromkeys(remark.text for one in presets for remark in one.remarks)
    tokens = training.steps * training.batch_size * preset.context
    rows = f"{training.batch_size:,} rows of {preset.context:,} tokens"
    parts = [
        f"{training.steps:,} steps of {rows}: {tokens:,} tokens.",
        f"Source: {preset.source}.",
        *(f"{remark[:1].upper()}{remark[1:].rstrip('.')}." for remark in remarks),
    ]
    if not setting.task.has_test:
        parts.append(f"{name} has no test split: its validation split is scored at the end.")
    return " ".join(parts)


def count_passes(run: RunConfig, training_tokens: int | None) -> float | None:
    """Return a run's passes over its training text, or None if the tokens are not counted yet."""
    if not training_tokens:
        return None
    return run.training.steps * run.tokens_per_step / training_tokens


def describe_effort(
    run: RunConfig,
    training_tokens: int | None,
    seconds: Sequence[float | None] = (),
    text_bytes: int | None = None,
) -> str:
    """Describe how many passes over the text a run makes, and how long the run takes.

    If there are too many passes, the text also says how to shorten the run.
    """
    per_step = run.tokens_per_step
    parts = [f"{count(run.training.steps, 'step')} of {whole(per_step)} tokens"]
    passes = count_passes(run, training_tokens or text_bytes)
    if passes is not None and not training_tokens:
        parts.append(f"at least {real(passes)} passes over the {whole(text_bytes)} bytes of text")
    elif passes is not None:
        parts.append(f"{real(passes)} passes over the {whole(training_tokens)} training tokens")
    known = [one for one in seconds if one is not None]
    if known and len(known) == len(seconds):
        runs = "" if len(seconds) == 1 else f" for all {len(seconds)} runs"
        parts.append(
            f"about {duration(sum(known), 2)} on this machine{runs}, validations and test included"
        )
    text = "; ".join(parts)
    if passes is None or passes <= MOST_PASSES:
        return text
    rows = run.training.steps * run.training.batch_size * MOST_PASSES / passes
    better = f"--steps {math.floor(rows / run.training.batch_size)}"
    if rows / run.training.batch_size < FEWEST_STEPS:
        batch = 2 ** max(0, math.floor(math.log2(rows / FEWEST_STEPS)))
        better = f"--batch-size {batch} --steps {max(1, math.floor(rows / batch))}"
    return f"{text}. More than {MOST_PASSES} passes teach little: try {better}"
