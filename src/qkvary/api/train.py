"""Train a language model: a preset, its variants, and any text.

A training makes these values before its first step. Each value is made from the values above it:

- ``Preset``: a named network and how to train it; ``TrainingOptions`` hold the user's changes;
- ``PlannedSet``: the prepared set of the text, in ``prepared``; a plan may know only its size;
- ``Setting``: the network and training on that set, with the user's changes applied;
- ``Study``: the setting with all variants and seeds; a note (a file in the store) records it;
- ``Cell``: one variant and one seed of the study, with a title to show;
- ``RunConfig``: everything that determines the numbers of that run; the folder of the run is named
  by the run's key, a hash of this configuration and its data;
- ``ExecutionSettings``: the part of a ``RunConfig`` that may change when the run is resumed. The
  *stored* settings are those with which the run began; they are part of its key. The *requested*
  settings are those of the present command; with ``--allow-change``, the remaining steps are
  computed with them;
- ``LanguageTask``: the batches, loss and scores of a run; ``training.loop`` takes the steps.
"""

import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from qkvary.api.arguments import verb
from qkvary.api.options import SILENT, Seeds, Terminal, Variants, write_call
from qkvary.arch.canonical import from_dict, to_dict
from qkvary.arch.labels import format_label
from qkvary.data.checkpoint_names import RUNS
from qkvary.reports.report import Report
from qkvary.storage.durable import Owner, is_writable
from qkvary.storage.environment import default_threads, stop_in_order, without_downloads
from qkvary.storage.errors import BusyError, DamagedError, StoppedError, UsageError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.studies.records import Record
from qkvary.studies.running.cells import CellEnd, CellOptions, execute_cell
from qkvary.studies.running.store import Store
from qkvary.studies.study import Cell, Study
from qkvary.studies.training_study import (
    NO_OPTIONS,
    TrainingOptions,
    describe_effort,
    training_study,
)
from qkvary.studies.trainings import find_similar_runs, note_training
from qkvary.text.numbers import duration
from qkvary.text.progress_line import ignore
from qkvary.training.config import ExecutionSettings, RunConfig
from qkvary.training.presets import Preset, find_preset
from qkvary.training.progress import Callbacks, Event

if TYPE_CHECKING:
    from qkvary.api.training_result import TrainingResult
    from qkvary.data.prepared_sets import PlannedSet
    from qkvary.tasks.config import LanguageTaskConfig
    from qkvary.training.distribution import Distribution
    from qkvary.training.processes import RankInfo

BUSY_SECONDS = 0.5
"""Seconds between two checks for a run or a text that another process holds."""


@verb
def train(
    preset: str,
    *,
    data: str | None = None,
    variants: Variants = (),
    seeds: Seeds = (0,),
    options: TrainingOptions = NO_OPTIONS,
    out: Path = RUNS,
    dry_run: bool = False,
    terminal: Terminal = SILENT,
) -> "TrainingResult":
    """Train a language model: a preset, its variants, and any text.

    The same command resumes where it stopped, and shows finished runs. Under torchrun all processes
    train one network.

    Args:
        preset: A network and its training: lm-10m, lm-300m, gpt2-124m. If the name is
            unknown, the error lists all presets.
        data: A text file, a folder, a corpus by name, hf:owner/name, or a prepared set; texts are
            prepared first if necessary. If not given, the preset's own corpus.
        variants: Labels in any spelling; several are trained one after the other and compared.
        seeds: Seeds of the runs: 7 or 0,1,2 or 0-4; 0 if not given.
        options: Changes to the preset, and how its runs are executed.
        out: Folder of runs and reports.
        dry_run: Print the planned runs, and run nothing.
        terminal: Shows progress and messages.

    Raises:
        ValueError: for an unknown preset, device or variant, or options that make no sense.
        StoppedError: if a signal stopped the training; the same command resumes it.
        QkvaryError: if there is not enough data, disk space or memory.
    """
    base, store = find_preset(preset), Store(out)
    options.check()
    call = terminal.command or write_call(
        "train",
        repr(preset),
        options,
        data=data,
        variants=[format_label(label) for label in variants],
        seeds=list(seeds),
        out=os.fspath(out),
    )
    # Imported here because the help needs no torch.
    from qkvary.training.processes import RankInfo

    ranks = RankInfo.from_environment(os.environ)
    options = _with_threads(options, ranks)
    check = partial(_require_machine, options, ranks)
    with _join_processes(options, ranks) as distribution:
        if not distribution.is_first:
            terminal = SILENT
        planned = _find_data(base, data, options, terminal, distribution, check, dry_run=dry_run)

        study = _make_study(base, planned, variants, seeds, options, store, distribution)
        requested = study.cells()[0].run.execution_settings
        study = _with_stored_settings(study, store, options, distribution, terminal)
        left = _find_unfinished(study, store, distribution)
        # Finished runs are shown even on a machine that could not train them.
        runs = [cell.run.with_execution_settings(requested) for cell in left.values()]
        _require_sizes(runs, planned, distribution)
        if not dry_run:
            if left:
                check()
            _train_cells(
                study, left, requested, store, planned, options, distribution, call, terminal
            )
    # Imported here because training does not need the descriptions of runs.
    from qkvary.api.training_plan import plan_report
    from qkvary.api.training_result import TrainingResult, describe_runs

    if dry_run or not distribution.is_first:
        # Under torchrun only one process reports.
        nothing = Report(subject="", question=study.question)
        report = plan_report(study, store, planned) if distribution.is_first else nothing
        return TrainingResult(None, report, study=study, store=store)
    return describe_runs(study, store, call)


def _with_threads(options: TrainingOptions, ranks: "RankInfo") -> TrainingOptions:
    """Return the options with ``threads`` set.

    The default is all usable cores for a single process on the CPU, and otherwise 1.
    """
    is_alone = options.device == "cpu" and ranks.size == 1
    threads = options.threads or (default_threads() if is_alone else 1)
    return replace(options, threads=threads)


def _join_processes(
    options: TrainingOptions, ranks: "RankInfo"
) -> AbstractContextManager["Distribution"]:
    """Join the process group that torchrun started, if it started more than one process."""
    from qkvary.training.distribution import SINGLE_PROCESS

    if ranks.size == 1:
        return nullcontext(SINGLE_PROCESS)
    # This import takes as long as torch itself.
    from qkvary.training.parallel import join_process_group

    return join_process_group(ranks, options.strategy, options.device)


def _require_machine(options: TrainingOptions, ranks: "RankInfo") -> None:
    """Refuse a device that this machine lacks, and ``fsdp`` in a single process."""
    # Imported here because the help needs no torch.
    from qkvary.nn.devices import require_device

    require_device(options.device)
    if options.strategy == "fsdp" and ranks.size == 1:
        raise UsageError(
            "expected several processes for --strategy fsdp, got one: start several processes with "
            "`torchrun --nproc-per-node N -m qkvary train ...`"
        )


def _find_data(
    preset: Preset,
    text: str | None,
    options: TrainingOptions,
    shown: Terminal,
    distribution: "Distribution",
    check: Callable[[], None],
    *,
    dry_run: bool,
) -> "PlannedSet":
    """Return the prepared set of a text; the first process prepares it if necessary.

    ``check`` is called before a set is prepared. With ``dry_run``, its error is shown as a
    warning, and nothing is prepared or downloaded.
    """
    from qkvary.data.prepared import PreparedData, open_prepared
    from qkvary.data.prepared_sets import PlannedSet, find_share_error, plan_text, prepare_text

    text = preset.corpus if text is None else text
    given = (text, options.tokenizer, preset.tokenizer, shown.warn)
    made: list[PreparedData] = []

    def prepare() -> str:
        said = ""
        with shown.show_progress("preparing", "bytes") as show:
            while not made:
                try:
                    made.append(prepare_text(*given, show, check))
                except BusyError as busy:
                    # Another process is preparing this text: wait for its prepared set.
                    if said != str(busy):
                        said = str(busy)
                        shown.say(said)
                    time.sleep(BUSY_SECONDS)
        return str(made[0].path)

    if dry_run:
        try:
            check()
        except UsageError as error:
            shown.warn(f"this machine cannot run this training: {error}")
        with without_downloads():
            planned = plan_text(*given)
    else:
        folder = distribution.run_on_first(prepare)
        planned = PlannedSet.of(made[0] if made else open_prepared(Path(folder)))
    if planned.prepared is not None and (problem := find_share_error(planned.prepared)):
        shown.warn(problem)
    return planned


def _make_study(
    preset: Preset,
    planned: "PlannedSet",
    variants: Variants,
    seeds: Seeds,
    options: TrainingOptions,
    store: Store,
    distribution: "Distribution",
) -> Study:
    """Return the study of the requested runs; ``--minutes`` are converted to steps."""

    def study_of(steps: int | None) -> Study:
        full = replace(options, steps=steps, minutes=None)
        return training_study(preset, planned, variants=variants, seeds=seeds, options=full)

    if (minutes := options.minutes) is None:
        return study_of(options.steps)
    from qkvary.api.training_plan import choose_steps

    return study_of(
        distribution.run_on_first(lambda: choose_steps(minutes, study_of, planned, store))
    )


def _require_sizes(
    runs: Iterable[RunConfig], planned: "PlannedSet", distribution: "Distribution"
) -> None:
    """Refuse runs that need more memory than is free or that have less text than one sequence."""
    # Imported here because the help needs no torch.
    from qkvary.training.memory import require_training_memory

    for run in runs:
        require_training_memory(run, processes=distribution.size)
        if cast("LanguageTaskConfig", run.task).protocol == "packed":
            planned.require_row(run.sequence_length)


def _with_stored_settings(
    study: Study,
    store: Store,
    options: TrainingOptions,
    distribution: "Distribution",
    terminal: Terminal,
) -> Study:
    """Return the study with the execution settings of similar stored runs, if there are any.

    Similar runs differ from the runs of the study only in execution settings.
    """
    cells = study.runs()

    def find_stored() -> JsonValue:
        if options.anew:
            return None
        similar = find_similar_runs(store, cells, with_done=options.allow_change)
        if not similar:
            return None
        newest = max(similar, key=lambda run: run.step)
        differences = newest.differences(newest.cell.run.execution_settings)
        if not options.allow_change:
            raise UsageError(
                f"{newest.cell.title} began with {differences}, and has reached step "
                f"{newest.step:,}: resume it with the new settings (--allow-change), or start "
                "another run (--anew)"
            )
        for run in similar:
            if run.is_done:
                terminal.warn(
                    f"{run.cell.title} began with {differences}, and has ended: the finished "
                    "run is shown, not trained again. To start another run, use --anew instead of "
                    "--allow-change"
                )
        return to_dict(newest.stored)

    stored = distribution.run_on_first(find_stored)
    return (
        study
        if stored is None
        else study.with_execution_settings(from_dict(ExecutionSettings, stored))
    )


def _find_unfinished(study: Study, store: Store, distribution: "Distribution") -> dict[str, Cell]:
    """Return the unfinished runs by key. Raise an error if a finished run is damaged."""
    cells = study.runs()

    def find_keys() -> JsonValue:
        unfinished: list[str] = []
        for key, cell in cells.items():
            problem = store.find_damage(key)
            if problem is not None:
                raise DamagedError(
                    f"{cell.title}: {problem}; restore the run, or move {store.directory(key)} "
                    "away to train the run again"
                )
            # A process that was killed may have left checkpoints of a finished run.
            if store.state(key) != "done" or not store.is_clean(key):
                unfinished.append(key)
        return unfinished

    return {key: cells[key] for key in distribution.run_on_first(find_keys)}


def _train_cells(
    study: Study,
    left: dict[str, Cell],
    requested: ExecutionSettings,
    store: Store,
    planned: "PlannedSet",
    options: TrainingOptions,
    distribution: "Distribution",
    call: str,
    terminal: Terminal,
) -> None:
    """Train the runs of a study that are ``left``; all processes train together."""
    from qkvary.studies.running.training import train_cell
    from qkvary.tasks.language import LanguageTask

    task = LanguageTask(cast("LanguageTaskConfig", study.settings[0].task), planned.prepared)
    if left:
        cell = next(iter(left.values()))
        terminal.say(describe_effort(cell.run, task.data.splits["train"].tokens))
    if distribution.is_first and (left or is_writable(store.path)):
        note_training(store, study, call, options.minutes)
    cell_options = CellOptions(
        checkpoint_seconds=options.checkpoint_seconds,
        keep=options.keep,
        tracker=options.log,
        project=study.name,
        sample=options.sample,
        records_failures=False,
    )
    train_in = partial(train_cell, distribution=distribution, requested=requested, task=task)
    is_command = terminal.command is not None
    with _TrainingDisplay(terminal) as display, stop_in_order(announce=is_command) as stop:
        while left:
            busy: dict[str, Cell] = {}
            for key, cell in left.items():
                end = CellEnd(outcome="stopped")
                # All processes stop together, even between two runs.
                if not distribution.all_reduce([float(stop.is_set())])[0]:
                    end = execute_cell(
                        store,
                        cell,
                        train_in,
                        stop=stop.is_set,
                        callbacks=display.callbacks,
                        options=cell_options,
                        on_first=distribution.run_on_first,
                        on_claim=display.begin,
                    )
                if end.outcome == "stopped":
                    raise StoppedError(stop.number or signal.SIGTERM)
                if end.outcome == "busy":
                    busy[key] = cell
                record = store.record(key) if end.outcome == "made" else None
                if record is not None:
                    display.end(cell, record, end.seconds)
            if len(busy) == len(left):
                key, cell = next(iter(busy.items()))
                display.wait(cell, store.owner(key))
                time.sleep(BUSY_SECONDS)
            left = busy


class _TrainingDisplay(AbstractContextManager["_TrainingDisplay"]):
    """Shows the progress of the runs in training."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self.callbacks = Callbacks(on_event=self._show_event, on_log=self._log)
        self._open = ExitStack()
        self._update: Callable[..., None] = ignore
        self._cell: Cell | None = None
        self._began: tuple[float, float] | None = None
        self._waits_for = ""

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def begin(self, cell: Cell) -> None:
        """Print the title of the run that begins or resumes, and show its progress."""
        self._open.close()
        self._cell, self._began = cell, None
        self._terminal.say(cell.title)
        self._update = self._open.enter_context(self._terminal.show_progress("training", "steps"))

    def wait(self, cell: Cell, owner: Owner | None) -> None:
        """Print which process holds the run that this process waits for, once per holder."""
        if owner is not None and str(owner) != self._waits_for:
            self._waits_for = str(owner)
            self._terminal.say(f"waiting for {owner}: {cell.title}")

    def end(self, cell: Cell, record: Record, seconds: float) -> None:
        """Print the outcome of a run."""
        self._open.close()
        if record.status == "done":
            took = duration(seconds, 2)
            self._terminal.say(f"{cell.title} is done in {took}: loss {record.headline:.4f}")
        else:
            self._terminal.warn(f"{cell.title} {record.status}: {record.message}")

    def _log(self, entry: Mapping[str, Any]) -> None:
        """Print one entry of a run's log."""
        step = f"step {entry['step']:,}"
        match entry["event"]:
            case "validation":
                names = ("perplexity", "bits_per_byte")
                scores = ", ".join(f"{name} {entry[name]:.4g}" for name in names)
                self._terminal.say(f"{step}: validation loss {entry['loss']:.4f}, {scores}")
            case "sample":
                self._terminal.say(f"{step}: {entry['text']}")
            case "skipped":
                loss, norm = entry["loss"], entry["gradient_norm"]
                self._terminal.say(f"{step}: skipped, loss {loss:.4g}, gradient norm {norm:.4g}")
            case "resumed":
                changed = entry.get("changed", {})
                changes = [f"{name} {now} (was {was})" for name, (was, now) in changed.items()]
                self._terminal.say(", ".join([f"resumed at {step}", *changes]))
            case _:
                pass

    def _show_event(self, event: Event) -> None:
        cell = self._cell
        if event.warning:
            self._terminal.warn(event.warning if cell is None else f"{cell.title}: {event.warning}")
            return
        now, done = time.monotonic(), event.step + event.part
        began, first = self._began = self._began or (now, done)
        notes = [f"{event.part:.0%} of the next"] if event.part else []
        if event.loss is not None and math.isfinite(event.loss):
            notes.append(f"loss {event.loss:.4f}")
        if done > first and cell is not None:
            tokens = cell.run.tokens_per_step
            notes.append(f"{(done - first) / (now - began) * tokens:,.0f} tokens/s")
        self._update(event.step, event.steps, ", ".join(notes))
