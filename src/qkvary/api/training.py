"""``qk.train``: a preset, its variants, and any text. ``qkvary train`` calls it."""

import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from qkvary.api.training_effort import choose_steps, describe_effort, estimate_seconds
from qkvary.arch.canonical import from_dict, to_dict
from qkvary.data.preparation import PreparationSettings, Progress
from qkvary.data.prepared import PreparedData, is_prepared, open_prepared
from qkvary.data.prepared_sets import PlannedSet, find_or_prepare, find_share_error, plan_set
from qkvary.storage.errors import DamagedError, StoppedError, UsageError
from qkvary.storage.locks import Owner
from qkvary.storage.paths import StrPath
from qkvary.studies.pretraining import (
    NO_OPTIONS,
    DataReference,
    TrainingOptions,
    training_study,
)
from qkvary.studies.running.cells import CellOptions, execute_cell
from qkvary.studies.running.records import Record
from qkvary.studies.running.signals import handle_endings, leave_terminal
from qkvary.studies.running.similar_runs import find_similar_run, with_execution
from qkvary.studies.running.store import Store
from qkvary.studies.running.training import train_cell
from qkvary.studies.running.trainings import note_training
from qkvary.studies.study import Cell, Study
from qkvary.training.allocator import keep_freed_memory
from qkvary.training.config import ExecutionSettings
from qkvary.training.distribution import Distribution, SingleProcess
from qkvary.training.memory import require_training_memory
from qkvary.training.presets import Preset, find_preset
from qkvary.training.progress import NO_CALLBACKS, Callbacks

if TYPE_CHECKING:
    from qkvary.api.training_result import TrainingResult

BUSY_SECONDS = 0.5
"""Seconds between two checks of a run that another process holds."""


class Display:
    """Shows what a training does; this one shows nothing."""

    is_visible = False
    """Whether anybody sees it."""
    callbacks: Callbacks = NO_CALLBACKS
    """Called while a run is trained."""

    def note(self, text: str) -> None:
        """Show a sentence."""

    def warn(self, text: str) -> None:
        """Show a warning."""

    def prepare(self) -> AbstractContextManager[Callable[[Progress], None]]:
        """Show the progress of the preparation of the data."""
        return nullcontext(lambda _progress: None)

    def end(self, cell: Cell, record: Record, seconds: float) -> None:
        """Show that a run has ended."""

    def wait(self, cell: Cell, owner: Owner | None) -> None:
        """Show that another process holds all runs that are left."""

    def stop(self) -> None:
        """Show that a run is stopped; called by a handler of signals."""

    def close(self) -> None:
        """Restore the terminal."""


def train(
    preset: str,
    *,
    data: StrPath | None = None,
    variants: Sequence[str] | str = (),
    seeds: Sequence[int] | int = 0,
    options: TrainingOptions = NO_OPTIONS,
    out: StrPath = "runs",
    dry_run: bool = False,
    command: str = "",
    display: Display | None = None,
) -> "TrainingResult":
    """Train a language model: a preset, its variants, and any text.

    The same call resumes where it stopped, and shows finished runs. Under torchrun all processes
    train one network.

    Args:
        preset: A network and its training: lm-10m, lm-300m, gpt2-124m.
        data: A text file, a folder, a corpus by name, hf:owner/name, or a prepared set. What is not
            prepared is prepared. The preset's own corpus if not given.
        variants: Labels in any spelling; several are trained one after the other and compared.
        seeds: Seeds of the runs.
        options: Changes to the preset, and how its runs are executed.
        out: Folder of runs and reports.
        dry_run: Only plan the runs.
        command: What its pages say how it was made; this call if not given.
        display: Shows what happens; nothing by default.

    Raises:
        ValueError: for an unknown preset, device or variant, or options that make no sense.
        StoppedError: after a signal; the runs have checkpoints.
        QkvaryError: if the data, the disk or the memory does not suffice.
    """
    chosen = find_preset(preset)
    options.check()
    shown = display or Display()
    labels = (variants,) if isinstance(variants, str) else tuple(variants)
    call = command or f"qk.train({preset!r}, data={str(data)!r}, options={options!r})"
    with _join_processes(options) as distribution:
        planned = _find_data(chosen, data, options.tokenizer, shown, distribution, dry_run=dry_run)
        store = Store(out)

        def study_of(steps: int | None) -> Study:
            return training_study(
                chosen,
                _refer_to(planned),
                variants=labels,
                seeds=(seeds,) if isinstance(seeds, int) else tuple(seeds),
                options=replace(options, steps=steps, threads=_count_threads(options)),
            )

        steps = options.steps
        if (minutes := options.minutes) is not None:
            steps = distribution.run_on_first(
                lambda: choose_steps(minutes, study_of, planned, store, call)
            )
        study = study_of(steps)
        for cell in study.cells():
            require_training_memory(cell.run, processes=distribution.size)
        if dry_run:
            return _describe_plan(study, store, planned)
        study = _train(study, store, planned, options, distribution, call, shown)
        if distribution.rank:
            return _describe_rank(study, store)
    # What describes the runs is not needed to train them.
    from qkvary.api.training_result import describe_runs

    found = planned.data
    return describe_runs(study, store, call, None if found is None else find_share_error(found))


def _train(
    study: Study,
    store: Store,
    planned: PlannedSet,
    options: TrainingOptions,
    distribution: Distribution,
    call: str,
    shown: Display,
) -> Study:
    """Train the unfinished runs; return the study with the execution settings of its runs."""
    requested = study.cells()[0].run.execution
    begun = distribution.run_on_first(
        lambda: to_dict(_begun_execution(study, store, options, shown))
    )
    if begun is not None:
        study = with_execution(study, from_dict(ExecutionSettings, begun))
    distribution.run_on_first(lambda: _check_finished(study, store))
    keep_freed_memory()
    if not distribution.rank:
        _announce(study, store, planned, shown)
        note_training(store, study, call)
    _train_cells(study, store, options, distribution, requested, shown)
    return study


def _join_processes(options: TrainingOptions) -> AbstractContextManager[Distribution]:
    """Join the process group that torchrun started; without torchrun there is one process."""
    if "WORLD_SIZE" not in os.environ:
        return nullcontext(SingleProcess())
    # Takes as long to import as torch itself.
    from qkvary.training.parallel import join_process_group

    return join_process_group(options.strategy, options.device)


def _find_data(
    preset: Preset,
    data: StrPath | None,
    tokenizer: str | None,
    shown: Display,
    distribution: Distribution,
    *,
    dry_run: bool,
) -> PlannedSet:
    """Return the requested set; the first process prepares it if necessary.

    A plan prepares and downloads nothing.

    Raises:
        UsageError: for a tokenizer with the folder of a prepared set.
    """
    reference = preset.corpus if data is None else os.fspath(data)
    path = Path(reference).expanduser()
    if is_prepared(path):
        if tokenizer is not None:
            raise UsageError(
                f"expected no --tokenizer with a prepared set, got {tokenizer} with {path}"
            )
        planned = PlannedSet.of(open_prepared(path))
    elif dry_run:
        os.environ["HF_HUB_OFFLINE"] = "1"
        planned = plan_set(reference, tokenizer, default=preset.tokenizer, warn=shown.warn)
    else:
        planned = PlannedSet.of(_prepare(reference, preset, tokenizer, shown, distribution))
    warning = None if planned.data is None else find_share_error(planned.data)
    if warning is not None and not distribution.rank:
        shown.warn(warning)
    return planned


def _prepare(
    reference: str,
    preset: Preset,
    tokenizer: str | None,
    shown: Display,
    distribution: Distribution,
) -> PreparedData:
    made: list[PreparedData] = []

    def prepare() -> str:
        with shown.prepare() as on_progress:
            settings = PreparationSettings(on_progress=on_progress)
            made.append(
                find_or_prepare(
                    reference,
                    tokenizer,
                    default=preset.tokenizer,
                    warn=shown.warn,
                    settings=settings,
                )
            )
        return str(made[0].path)

    path = distribution.run_on_first(prepare)
    return made[0] if made else open_prepared(Path(path))


def _count_threads(options: TrainingOptions) -> int:
    is_single = options.device == "cpu" and "WORLD_SIZE" not in os.environ
    return options.threads or ((os.cpu_count() or 1) if is_single else 1)


def _refer_to(planned: PlannedSet) -> DataReference:
    data = planned.data
    return DataReference(
        name=planned.name,
        folder="" if data is None else str(data.path.resolve()),
        fingerprint="" if data is None else data.fingerprint,
        vocabulary=planned.vocabulary,
        has_test=data is None or "test" in data.splits,
    )


def _announce(study: Study, store: Store, planned: PlannedSet, shown: Display) -> None:
    """Show passes over the text and time of the runs that are not done."""
    runs = [cell.run for cell in study.cells() if store.state(cell.run_key) != "done"]
    tokens = 0 if planned.data is None else planned.data.splits["train"].tokens
    # A text shorter than a row is refused when it is read.
    if runs and shown.is_visible and tokens > runs[0].sequence_length:
        seconds = [estimate_seconds(run, planned) for run in runs]
        shown.note(describe_effort(runs[0], tokens, seconds))


def _begun_execution(
    study: Study, store: Store, options: TrainingOptions, shown: Display
) -> ExecutionSettings | None:
    """Return the execution settings of the similar runs to resume, or None."""
    similar = None if options.anew else find_similar_run(store, study)
    if similar is not None and not options.allow_change:
        raise UsageError(
            f"{similar.cell.title} was begun with {similar.differences}, and has come to step "
            f"{similar.step:,}: resume it with the new settings (--allow-change), or begin another "
            "run (--anew)"
        )
    if similar is None and options.allow_change:
        done = find_similar_run(store, study, state="done")
        if done is not None:
            shown.warn(
                f"{done.cell.title} has ended with {done.differences}: nothing is left to "
                "resume, so it is trained again with the new settings"
            )
    return None if similar is None else similar.execution


def _check_finished(study: Study, store: Store) -> None:
    """Refuse to replace a finished run that is damaged."""
    for cell in study.cells():
        problem = store.find_damage(cell.run_key) if store.state(cell.run_key) == "done" else None
        if problem is not None:
            raise DamagedError(
                f"{cell.title}: {problem}; restore it, or move "
                f"{store.directory(cell.run_key)} away to train the run again"
            )


def _train_cells(
    study: Study,
    store: Store,
    options: TrainingOptions,
    distribution: Distribution,
    execution: ExecutionSettings,
    shown: Display,
) -> None:
    """Train the unfinished runs; all processes do so together."""
    trainer = partial(train_cell, distribution=distribution, execution=execution)
    chosen = CellOptions(
        checkpoint_seconds=options.checkpoint_seconds,
        keep=options.keep,
        tracker=options.log,
        project=study.name,
        prompt=options.sample,
        records_failures=False,
    )
    if distribution.rank:
        shown = Display()
    stopping, left = threading.Event(), list(study.cells())
    with _stop_on_signal(stopping.set, shown) as received:
        while left:
            busy: list[Cell] = []
            for cell in left:
                # All processes stop together, also between two runs.
                if distribution.all_reduce([float(stopping.is_set())])[0]:
                    raise StoppedError(received[0] if received else signal.SIGTERM)
                end = execute_cell(
                    store,
                    cell,
                    trainer,
                    stop=stopping.is_set,
                    callbacks=shown.callbacks,
                    options=chosen,
                    on_first=distribution.run_on_first,
                )
                if end.outcome == "stopped":
                    raise StoppedError(received[0] if received else signal.SIGTERM)
                busy += [cell] * (end.outcome == "busy")
                record = store.record(cell.run_key) if end.outcome == "made" else None
                if record is not None:
                    shown.end(cell, record, end.seconds)
            if len(busy) == len(left):
                shown.wait(busy[0], store.owner(busy[0].run_key))
                stopping.wait(BUSY_SECONDS)
            left = busy


@contextmanager
def _stop_on_signal(stop: Callable[[], None], shown: Display) -> Generator[list[int]]:
    """Stop the training in order at the first signal to end, and at once at the second."""
    received: list[int] = []

    def receive(number: int, _frame: FrameType | None) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        leave_terminal(number)
        stop()
        shown.stop()

    try:
        with handle_endings(receive):
            yield received
    finally:
        shown.close()


def _describe_plan(study: Study, store: Store, planned: PlannedSet) -> "TrainingResult":
    from qkvary.api.training_plan import plan_report
    from qkvary.api.training_result import TrainingResult

    return TrainingResult(None, plan_report(study, store, planned), study=study, store=store)


def _describe_rank(study: Study, store: Store) -> "TrainingResult":
    """Return the result of a process other than the first, which writes nothing."""
    from qkvary.api.training_result import TrainingResult
    from qkvary.reports.report import Report

    return TrainingResult(
        None, Report(subject="", question=study.question), study=study, store=store
    )
