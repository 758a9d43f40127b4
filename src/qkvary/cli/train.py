"""Train a language model: a preset, its variants, and any text."""

import dataclasses
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from qkvary.api.training_texts import write_texts
from qkvary.arch.canonical import from_dict, to_dict
from qkvary.cli._data_prepare import show_preparation
from qkvary.cli._options import (
    DEFAULT_OUT,
    DEFAULT_WHERE,
    Json,
    Out,
    Where,
    parse_seeds,
    variant_labels,
)
from qkvary.cli._output import command_line, console, print_line, show
from qkvary.cli._runs_output import print_plan, print_scores
from qkvary.cli._streams import print_error
from qkvary.cli._training_effort import describe_effort, estimate_seconds
from qkvary.cli._training_minutes import choose_steps
from qkvary.cli._training_options import (
    AS_THE_PRESET,
    DEFAULT_RUNNING,
    NO_CHANGES,
    OWN_CORPUS,
    Changes,
    Computing,
    Corpus,
    Running,
)
from qkvary.cli._training_progress import TrainingDisplay
from qkvary.data.preparation import PreparationSettings
from qkvary.data.prepared import PreparedData, is_prepared, open_prepared
from qkvary.data.reuse import PlannedSet, find_or_prepare, plan_set
from qkvary.reports.files import write_report
from qkvary.reports.prepared_set import find_share_error
from qkvary.reports.study_results import gather_results, report_folder
from qkvary.reports.terminal import print_report, print_sentences
from qkvary.reports.training import training_report
from qkvary.storage.environment import check_device
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.studies.pretraining import (
    DataReference,
    TrainingOverrides,
    training_study,
)
from qkvary.studies.running.messages import STOPPING, Job
from qkvary.studies.running.signals import handle_endings, leave_terminal
from qkvary.studies.running.similar_runs import find_similar_run, with_execution
from qkvary.studies.running.store import Store
from qkvary.studies.running.trainings import note_training, page_name
from qkvary.studies.study import Study
from qkvary.training.allocator import keep_freed_memory
from qkvary.training.config import ExecutionSettings
from qkvary.training.presets import Preset, find_preset, preset_names
from qkvary.training.trackers import require_tracker

if TYPE_CHECKING:
    from qkvary.training.distribution import Distribution


PresetName = Annotated[
    str,
    Parameter(
        help="A network and its training: lm-10m, lm-300m, gpt2-124m; an unknown name lists all.",
        completer=lambda _: preset_names(),
    ),
]
Variants = Annotated[
    tuple[str, ...],
    variant_labels("Labels in any spelling; several are trained one after the other and compared."),
]
DryRun = Annotated[bool, Parameter(help="Print the planned runs, and end.")]


SHOWN_KEY = 8
"""Digits of a run's key in the next command."""
ENDED_BADLY = (1, 5)
"""Exit codes of failed or diverged runs; the results of the others are still shown."""


def command(
    preset: PresetName,
    /,
    *,
    corpus: Corpus = OWN_CORPUS,
    variants: Variants = (),
    changes: Changes = NO_CHANGES,
    computing: Computing = AS_THE_PRESET,
    where: Where = DEFAULT_WHERE,
    running: Running = DEFAULT_RUNNING,
    out: Out = DEFAULT_OUT,
    dry_run: DryRun = False,
    json_output: Json = False,
) -> int:
    """Train a language model: a preset, its variants, and any text.

    The same command resumes where it stopped, and shows finished runs. Under torchrun all processes
    train one network.
    """
    chosen = find_preset(preset)
    check_device(where.device)
    running.check()
    changes.check()
    require_tracker(running.log)

    from qkvary.training.memory import require_training_memory

    with _join_processes(running, where.device) as distribution:
        data = _plan_set(chosen, corpus) if dry_run else _prepare(chosen, corpus, distribution)
        planned = data if isinstance(data, PlannedSet) else PlannedSet.of(data)
        warning = None if planned.data is None else find_share_error(planned.data)
        if warning is not None and not distribution.rank:
            print_error(warning)

        def study_of(steps: int | None) -> Study:
            overrides = changes.overrides(steps, computing.overrides(where.device))
            return _make_study(chosen, planned, variants, where, overrides)

        store, minutes = Store(out), changes.minutes
        study = study_of(
            None
            if minutes is None
            else distribution.run_on_first(
                lambda: choose_steps(minutes, study_of, planned, store, command_line("train", ""))
            )
        )

        def check_memory() -> None:
            for cell in study.cells():
                require_training_memory(cell.run, processes=distribution.size)

        if dry_run:
            if not distribution.rank:
                print_plan(study, store, planned, json_output=json_output)
            check_memory()
            return 0
        check_memory()
        requested = study.cells()[0].run.execution
        begun = distribution.run_on_first(lambda: to_dict(_begun_execution(study, store, running)))
        if begun is not None:
            study = with_execution(study, from_dict(ExecutionSettings, begun))
        distribution.run_on_first(lambda: _check_finished(study, store))
        keep_freed_memory()
        if not distribution.rank:
            _announce(study, store, planned, quiet=json_output)
            note_training(store, study, command_line("train", f"qkvary {study.name}"))
        code = _train(study, store, running, distribution, requested, quiet=json_output)
        if distribution.rank:
            return code
    code = code or _ended_before(study, store)
    if code in (0, *ENDED_BADLY):
        _conclude(study, store, out, json_output=json_output)
        if warning is not None and not json_output:
            print_error(warning)
    return code


def _join_processes(running: Running, device: str) -> AbstractContextManager["Distribution"]:
    """Join the process group that torchrun started; without torchrun there is one process."""
    from qkvary.training.distribution import SingleProcess
    from qkvary.training.processes import RankInfo

    if RankInfo.from_environment(os.environ).size == 1:
        return nullcontext(SingleProcess())
    # Takes as long to import as torch itself.
    from qkvary.training.parallel import join_process_group

    return join_process_group(running.strategy, device)


def _prepare(preset: Preset, corpus: Corpus, distribution: "Distribution") -> PreparedData:
    """Return the requested set; the first process prepares it if necessary."""
    reference, tokenizer = _choose_text(preset, corpus), corpus.tokenizer
    if is_prepared(Path(reference)):
        return open_prepared(Path(reference))

    def prepare() -> str:
        with show_preparation() as on_progress:
            prepared = find_or_prepare(
                reference,
                tokenizer,
                default=preset.tokenizer,
                warn=print_error,
                settings=PreparationSettings(on_progress=on_progress),
            )
        return str(prepared.path)

    return open_prepared(Path(distribution.run_on_first(prepare)))


def _plan_set(preset: Preset, corpus: Corpus) -> PlannedSet:
    """Return the requested set without preparing or downloading it."""
    reference = _choose_text(preset, corpus)
    if is_prepared(Path(reference)):
        return PlannedSet.of(open_prepared(Path(reference)))
    os.environ["HF_HUB_OFFLINE"] = "1"
    return plan_set(reference, corpus.tokenizer, default=preset.tokenizer, warn=print_error)


def _make_study(
    preset: Preset,
    planned: PlannedSet,
    variants: tuple[str, ...],
    where: Where,
    overrides: TrainingOverrides,
) -> Study:
    data = planned.data
    reference = DataReference(
        name=planned.name,
        folder="" if data is None else str(data.path.resolve()),
        fingerprint="" if data is None else data.fingerprint,
        vocabulary=planned.vocabulary,
        has_test=data is None or "test" in data.splits,
    )
    return training_study(
        preset,
        reference,
        variants=variants,
        seeds=(0,) if where.seeds is None else parse_seeds(where.seeds),
        overrides=overrides,
        device=where.device,
        dtype=where.dtype,
    )


def _choose_text(preset: Preset, corpus: Corpus) -> str:
    """Return the reference of the training data.

    Raises:
        UsageError: for a tokenizer with the folder of a prepared set.
    """
    reference = preset.corpus if corpus.data is None else corpus.data
    path = Path(reference).expanduser()
    if not is_prepared(path):
        return reference
    if corpus.tokenizer is not None:
        raise UsageError(
            f"expected no --tokenizer with a prepared set, got {corpus.tokenizer} with {path}"
        )
    return str(path)


def _train(
    study: Study,
    store: Store,
    running: Running,
    distribution: "Distribution",
    execution: ExecutionSettings,
    *,
    quiet: bool,
) -> int:
    """Train the unfinished runs; return the exit code."""
    from qkvary.studies.running import distributed

    cells = study.cells()
    job = Job(
        store=store.path,
        cells=cells,
        checkpoint_seconds=running.checkpoint_seconds,
        keep=running.keep,
        tracker=running.log,
        project=study.name,
    )
    if distribution.rank:
        stopping = threading.Event()
        with _stop_on_signal(stopping.set, said="") as received:
            distributed.run_other_rank(job, distribution, stop=stopping.is_set, execution=execution)
        return 128 + received[0] if received else 0
    display = TrainingDisplay(console(sys.stderr), cells, quiet=quiet)
    monitoring = distributed.Monitoring(
        send=display.handle,
        on_log=display.log,
        prompt=running.sample,
    )
    worker = distributed.make_worker(job, distribution, monitoring, execution)
    try:
        with _stop_on_signal(worker.stop, said=f"\n{STOPPING}\n") as received:
            worker.work()
    finally:
        display.close()
    distributed.announce_end(distribution)
    if worker.is_stopped:
        print_error("stopped; the same command resumes where it stopped")
        return 128 + (received[0] if received else signal.SIGTERM)
    return display.code


def _announce(study: Study, store: Store, planned: PlannedSet, *, quiet: bool) -> None:
    """Print passes over the text and time of the runs that are not done."""
    runs = [cell.run for cell in study.cells() if store.state(cell.run_key) != "done"]
    tokens = 0 if planned.data is None else planned.data.splits["train"].tokens
    # A text shorter than a row is refused when it is read.
    if runs and not quiet and tokens > runs[0].sequence_length:
        seconds = [estimate_seconds(run, planned) for run in runs]
        print_line(console(sys.stderr), describe_effort(runs[0], tokens, seconds))


def _begun_execution(study: Study, store: Store, running: Running) -> ExecutionSettings | None:
    """Return the execution settings of the similar runs to resume, or None."""
    similar = None if running.anew else find_similar_run(store, study)
    if similar is not None and not running.allow_change:
        raise UsageError(
            f"{similar.cell.title} was begun with {similar.differences}, and has come to step "
            f"{similar.step:,}: resume it with the new settings (--allow-change), or begin another "
            "run (--anew)"
        )
    if similar is None and running.allow_change:
        done = find_similar_run(store, study, state="done")
        if done is not None:
            print_error(
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


def _ended_before(study: Study, store: Store) -> int:
    """Return the exit code of runs that ended earlier."""
    records = [store.record(cell.run_key) for cell in study.cells()]
    ends = {record.status for record in records if record is not None}
    return 5 if "diverged" in ends else 1 if "failed" in ends else 0


@contextmanager
def _stop_on_signal(stop: Callable[[], None], *, said: str) -> Generator[list[int]]:
    """Stop the training in order at the first signal to end, and at once at the second."""
    received: list[int] = []

    def receive(number: int, _frame: FrameType | None) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        leave_terminal(number)
        stop()
        # A handler may interrupt a print, so it must not print itself.
        with suppress(OSError):
            os.write(2, said.encode())

    with handle_endings(receive):
        yield received


def _conclude(study: Study, store: Store, out: Path, *, json_output: bool) -> None:
    results = gather_results(study, store)
    summary = dataclasses.replace(
        results.summary, commands=(command_line("train", f"qkvary {study.name}"),)
    )
    report = training_report(summary, write_texts(study, store), results.attention)
    files = write_report(report, report_folder(page_name(store, study), out))
    networks = {cell.title: store.network(cell.run_key) for cell in study.cells()}
    if json_output:
        show(report, json_output=True, networks=networks, files=files)
        return
    screen = console()
    print_scores(screen, study, store)
    if len(study.variants) > 1:
        print_report(report, screen)
    else:
        print_sentences(screen, "", report.answer)
    for sentence in results.damage:
        print_error(sentence)
    print_line(screen, f"report: {files[0]}")
    trained = {title: path for title, path in networks.items() if path is not None}
    for title, path in trained.items():
        print_line(screen, f"{title}: {path}")
    for path in [*trained.values()][:1]:
        print_line(screen, f"next: {_next_command(store, out, path)}")


def _next_command(store: Store, out: Path, network: Path) -> str:
    """Return a command that writes a text with a network; any tokenizer has its empty prompt."""
    key = network.parent.name[:SHOWN_KEY]
    run = key if out == DEFAULT_OUT else shlex.quote(str(store.path / key))
    return f"qkvary generate {run} --temperature 0.7"
