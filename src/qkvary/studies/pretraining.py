"""The study of ``qkvary train``, made from a preset, a data set and options.

The folder of a run holds neither the name of the training nor its other runs. Each note is a study,
written once and never changed; notes that differ only in variants or seeds form one training.

Execution settings change the last bits of a step, so they are part of the identity of a run. A run
that differs only in these settings is *similar* and can still be resumed; its log then records the
change. Torch-free.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from qkvary.arch.canonical import from_dict, to_dict
from qkvary.arch.variants import AnyVariant
from qkvary.storage.durable import atomic_write_file, make_directory
from qkvary.storage.environment import check_device, now
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import DocumentFormat, decode, encode
from qkvary.storage.manifest import DEFAULT_KEEP, stored_steps
from qkvary.storage.packages import require
from qkvary.studies.running.store import CHECKPOINTS_NAME, CONFIG_NAME, Store
from qkvary.studies.study import Cell, Setting, Study
from qkvary.tasks.config import LanguageTaskConfig, Protocol
from qkvary.text.names import FOLDER_DIGITS, count, slug
from qkvary.text.numbers import duration, read_count, real, whole
from qkvary.training.config import (
    ExecutionConfig,
    ExecutionSettings,
    OnNonfinite,
    Precision,
    RunConfig,
    TrainingConfig,
)
from qkvary.training.presets import Preset
from qkvary.training.trackers import TrackerName

if TYPE_CHECKING:
    from qkvary.data.prepared_sets import PlannedSet

VALIDATIONS = 20
"""Number of validations of a shortened run."""
VALIDATION_TOKENS = 65_536
"""Tokens per validation of a shortened run, or if the preset does not specify them."""
MOST_SCORED = 0.5
"""Tokens that all validations of a shortened run score together, as a share of its training tokens.
Where this makes validations smaller, the final test scores at most as many tokens."""
MOST_PASSES = 16
"""Passes over a text after which a language model learns little more: Muennighoff et al. 2023,
"Scaling Data-Constrained Language Models"."""
FEWEST_STEPS = 200
"""With fewer steps than this, a smaller batch makes better use of the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionOptions:
    """Execution settings of a training; None keeps the preset's."""

    micro_batch_size: int | str | None = None
    """Rows per forward pass, in each process."""
    precision: Precision | None = None
    """full, or bf16: matrix products in bfloat16."""
    compile: bool | None = None
    """Compile the network with torch.compile."""
    recompute_blocks: bool | None = None
    """Recompute each block in the backward pass: less memory, a third more work."""
    threads: int | str | None = None
    """Threads on a CPU; if not given, all usable cores, or 1 on a GPU and under torchrun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetOptions(ExecutionOptions):
    """Changes to a preset; None keeps its value."""

    steps: int | str | None = None
    """Training steps; with fewer, warm-up and validations are shortened too."""
    minutes: float | None = None
    """Minutes of each run, instead of steps; the steps are estimated for this processor."""
    batch_size: int | str | None = None
    """Rows per step, over all processes."""
    context: int | str | None = None
    """Tokens per row: 256, 1k."""
    learning_rate: float | None = None
    """Peak learning rate."""
    evaluate_every: int | str | None = None
    """Steps between validations."""
    validation_tokens: int | str | None = None
    """Tokens per validation. If not given, as published or else 64k, and fewer in a short run."""
    test_tokens: int | str | None = None
    """Tokens scored at the end. If not given, all, and fewer in a short run."""
    on_nonfinite: OnNonfinite | None = None
    """What to do at a step with a non-finite loss or gradient: stop the run, or skip the step."""
    spike_guard: bool | None = None
    """End a run whose loss stays far above earlier ones."""
    protocol: Protocol | None = None
    """How documents become rows: packed, or padded-paper as published."""
    document_mask: bool = False
    """Attend within a document only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions(PresetOptions):
    """Changes to a preset, and how its runs are executed."""

    tokenizer: str | None = None
    """gpt2, bytes, characters, or a tokenizer.json; the preset's tokenizer if not given."""
    device: str = "cpu"
    """Device: cpu, cuda, cuda:1, mps."""
    dtype: Literal["float32", "float64"] = "float32"
    """Number format of the weights."""
    sample: str | None = None
    """Log how the network continues this text, at each validation."""
    log: TrackerName | None = None
    """A tracker that gets a copy of the logs; none if not given."""
    checkpoint_seconds: float = 60.0
    """Seconds between two checkpoints."""
    keep: int | str = DEFAULT_KEEP
    """Number of newest checkpoints to keep; at least 1."""
    allow_change: bool = False
    """Resume runs that began with another device, number of threads or micro-batch size."""
    anew: bool = False
    """Leave such runs alone, and begin new ones."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun: ddp gives every process the whole network, fsdp a shard of it."""

    def read(self) -> Self:
        """Return the options with counts as numbers, or refuse those that make no sense."""
        check_device(self.device)
        counts = {name: read_count(getattr(self, name), name) for name in _COUNTS}
        if self.steps is not None and self.minutes is not None:
            raise UsageError("expected --steps or --minutes, got both")
        if not 0.0 <= self.checkpoint_seconds < math.inf:
            raise UsageError(
                "expected a number of seconds for --checkpoint-seconds, 0 for every step, got "
                f"{self.checkpoint_seconds}"
            )
        if self.log is not None:
            require(self.log)
        return replace(self, **cast("dict[str, Any]", counts))


_COUNTS = (
    *("steps", "batch_size", "context", "evaluate_every", "validation_tokens", "test_tokens"),
    *("micro_batch_size", "keep"),
)
"""The options that are numbers of at least 1; threads have a maximum too."""
NO_OPTIONS = TrainingOptions()
"""The preset without changes."""


def training_study(
    preset: Preset,
    data: "PlannedSet",
    *,
    variants: Sequence[AnyVariant | str] = (),
    seeds: tuple[int, ...] = (0,),
    options: TrainingOptions = NO_OPTIONS,
) -> Study:
    """Return the study that trains a preset, with the first variant as baseline.

    Counts among the options are numbers, as ``TrainingOptions.read`` returns them.
    """
    chosen = [preset.with_variant(label) for label in variants] or [preset]
    labels = tuple(found.variant for found in chosen)
    first = chosen[0].with_vocabulary(data.vocabulary)
    if (context := cast("int | None", options.context)) is not None:
        first = replace(first, network=replace(first.network, max_tokens=context))
    setting = Setting(
        name=f"{preset.name} on {data.name}",
        task=_task(first, data, options),
        network=first.network,
        training=_training(first.training, options),
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
        device=options.device,
        dtype=options.dtype,
    )


def _task(preset: Preset, data: "PlannedSet", options: TrainingOptions) -> LanguageTaskConfig:
    reported = preset.reported_step or preset.training.steps
    steps = cast("int | None", options.steps)
    is_whole_run = steps is None or steps >= reported
    usual = (preset.validation_tokens if is_whole_run else None) or VALIDATION_TOKENS
    tested = None
    if steps is not None and steps < preset.training.steps:
        rows = steps * (cast("int | None", options.batch_size) or preset.training.batch_size)
        most = max(1, int(MOST_SCORED * rows / VALIDATIONS)) * preset.context
        if most < VALIDATION_TOKENS:
            usual, tested = most, most * VALIDATIONS
    return LanguageTaskConfig(
        data=data.folder,
        data_sha256=data.fingerprint,
        context=preset.context,
        protocol=options.protocol or preset.protocol,
        document_mask=options.document_mask,
        validation_tokens=cast("int | None", options.validation_tokens) or usual,
        test_tokens=cast("int | None", options.test_tokens) or tested,
        has_test=data.has_test,
    )


def _training(training: TrainingConfig, options: TrainingOptions) -> TrainingConfig:
    steps = cast("int | None", options.steps) or training.steps
    short = steps < training.steps
    schedule = training.schedule
    warmup = min(schedule.warmup_steps, max(1, steps // 10)) if short else schedule.warmup_steps
    every = min(training.evaluate_every, max(1, steps // VALIDATIONS))
    rate, guards = options.learning_rate, training.guards
    if rate is None:
        rate = training.optimizer.learning_rate
    batch = cast("int | None", options.batch_size) or training.batch_size
    return replace(
        training,
        steps=steps,
        batch_size=batch,
        schedule=replace(schedule, warmup_steps=warmup),
        optimizer=replace(training.optimizer, learning_rate=rate),
        evaluate_every=cast("int | None", options.evaluate_every)
        or (every if short else training.evaluate_every),
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


def _describe(presets: Sequence[Preset], training: TrainingConfig, data: "PlannedSet") -> str:
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


def count_passes(run: RunConfig, training_tokens: int | None) -> float | None:
    """Return the number of times that a run reads its text, or None if it is not counted yet."""
    if not training_tokens:
        return None
    training = run.training
    return training.steps * training.batch_size * run.sequence_length / training_tokens


def describe_effort(
    run: RunConfig,
    training_tokens: int | None,
    seconds: Sequence[float | None] = (),
    text_bytes: int | None = None,
) -> str:
    """Describe the passes and time of a run, and how to shorten it if it repeats a text a lot."""
    per_step = run.training.batch_size * run.sequence_length
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


# ---- stored trainings


NOTES = "trainings"
NOTE = DocumentFormat(name="a note of a training", version=1, key="format")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training: the runs of one or more notes."""

    study: Study
    """All requested variants and seeds, in the order of the requests."""
    commands: tuple[str, ...]
    notes: tuple[str, ...]
    """Names of the training's notes, without suffix."""


def note_training(store: Store, study: Study, command: str) -> None:
    """Write a note of a training, unless it exists."""
    written = to_dict(study)
    digest = hashlib.sha256(encode(written).encode()).hexdigest()[:FOLDER_DIGITS]
    path = store.path / NOTES / f"{slug(study.name)}-{digest}.json"
    if path.exists():
        return
    make_directory(path.parent)
    atomic_write_file(path, NOTE.write({"command": command, "noted": now(), "study": written}))


def list_trainings(store: Store) -> tuple[Training, ...]:
    """Return all trainings of a store, the oldest first."""
    # Notes store whole seconds; within one second, modification times decide.
    paths = sorted(
        (store.path / NOTES).glob("[!.]*.json"), key=lambda path: path.stat().st_mtime_ns
    )
    found = [_read_note(path) for path in paths]
    trainings: list[Training] = []
    for _, training in sorted(found, key=lambda one: one[0]):
        for number, known in enumerate(trainings):
            joined = _join(known, training)
            if joined is not None:
                trainings[number] = joined
                break
        else:
            trainings.append(training)
    return tuple(trainings)


def find_training(store: Store, name: str) -> Training:
    """Return the training that a name means: of that note, or the newest of that study."""
    trainings = list_trainings(store)
    for training in trainings:
        if name in training.notes:
            return training
    named = [training for training in trainings if training.study.name == name]
    # A training that has not made a step does not hide an older one.
    found = [training for training in named if _has_begun(store, training)] or named
    if found:
        return found[-1]
    known = ", ".join(dict.fromkeys(repr(training.study.name) for training in trainings))
    raise UsageError(
        f"expected a training of {store.path}, got {name!r}; "
        + (f"choices: {known}" if known else "it has none: run `qkvary train` first")
    )


def describe_older(store: Store, newest: Training) -> tuple[str, ...]:
    """Describe the older trainings of the same name: note, steps, variants and commands of each."""
    found: list[str] = []
    for one in list_trainings(store):
        study = one.study
        if study.name == newest.study.name and one.notes != newest.notes and _has_begun(store, one):
            steps = count(study.settings[0].training.steps, "step")
            commands = ", ".join(f"`{command}`" for command in one.commands)
            found.append(f"{one.notes[0]} ({steps}, {', '.join(study.variants)}: {commands})")
    return tuple(found)


def page_name(store: Store, study: Study) -> str:
    """Return the name of a training's page: the study's, or the note's for an older training."""
    named = [one for one in list_trainings(store) if one.study.name == study.name]
    begun = [one for one in named if _has_begun(store, one)] or named
    own = next((one for one in named if _keys(study) <= _keys(one.study)), None)
    return study.name if own is None or own is begun[0] else own.notes[0]


def _read_note(path: Path) -> tuple[str, Training]:
    """Return a note's time and training."""

    def build(note: dict[str, Any]) -> tuple[str, Training]:
        study = from_dict(Study, note["study"])
        training = Training(study=study, commands=(str(note["command"]),), notes=(path.stem,))
        return str(note["noted"]), training

    return NOTE.read(path.read_bytes(), path, build)


def _join(first: Training, second: Training) -> Training | None:
    """Return both trainings as one, or None if their runs cannot belong to one study."""
    one, other = first.study, second.study
    if one.name != other.name:
        return None
    variants = tuple(dict.fromkeys((*one.labels, *other.labels)))
    study = replace(one, variants=variants, seeds=tuple(dict.fromkeys((*one.seeds, *other.seeds))))
    if not (_keys(one) | _keys(other)) <= _keys(study):
        return None
    return Training(
        study=study,
        commands=tuple(dict.fromkeys((*first.commands, *second.commands))),
        notes=(*first.notes, *second.notes),
    )


def _keys(study: Study) -> set[str]:
    return {cell.run_key for cell in study.cells()}


def _has_begun(store: Store, training: Training) -> bool:
    return any(
        store.state(key) == "done" or store.log_events(key) for key in sorted(_keys(training.study))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarRun:
    """A stored run that differs from a requested one only in its execution settings."""

    cell: Cell
    execution: ExecutionSettings
    step: int
    """Step of the newest checkpoint; 0 if the run is done and has none."""

    @property
    def differences(self) -> str:
        """The settings in which the stored run differs, as command line options."""
        words: list[str] = []
        changed = self.execution.differences(self.cell.run.execution)
        for name, (stored, _) in changed.items():
            option = "--" + name.replace("_", "-")
            if stored is None or isinstance(stored, bool):
                words.append(option if stored else f"no {option}")
            else:
                words.append(f"{option} {stored}")
        return ", ".join(words)


def find_similar_run(
    store: Store, cells: Mapping[str, Cell], *, state: Literal["open", "done"] = "open"
) -> SimilarRun | None:
    """Return the most advanced similar run in a state; None if one of ``cells`` has begun."""
    keys = store.keys()
    if not keys:
        return None
    steps = {key: stored_steps(store.directory(key) / CHECKPOINTS_NAME) for key in keys}
    if any(store.state(key) != "open" or steps.get(key) for key in cells):
        return None
    wanted = {_identity_without_execution(cell.run.identity()): cell for cell in cells.values()}
    found: list[SimilarRun] = []
    for key in keys:
        if store.state(key) != state or (not steps[key] and state == "open"):
            continue
        identity, execution = _read(store, key)
        if execution is not None and (cell := wanted.get(identity)) is not None:
            step = max(steps[key], default=0)
            found.append(SimilarRun(cell=cell, execution=execution, step=step))
    return max(found, key=lambda one: one.step, default=None)


def _read(store: Store, key: str) -> tuple[str, ExecutionSettings | None]:
    """Return identity and execution settings of a stored run; None if they cannot be read."""
    try:
        data = (store.directory(key) / CONFIG_NAME).read_bytes()
        identity = cast("dict[str, Any]", decode(data))
        execution = from_dict(RunConfig, identity["run"]).execution
        return _identity_without_execution(identity), execution
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return "", None


def _identity_without_execution(identity: dict[str, Any]) -> str:
    run: dict[str, Any] = {**identity["run"], "device": None}
    run["training"] = {**run["training"], "execution": None}
    run["task"] = {**run["task"], "data": None}
    named = (run, identity["data_fingerprint"], identity["numerics_version"])
    return json.dumps(named, sort_keys=True)
