"""Runs a study: starts the workers, shows how it goes, replaces the ones that die. Torch-free.

The runner decides nothing about who makes which run: the workers claim them from the store. So a
second runner on the same store, here or on another machine, simply shares the work.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from rich.console import Console

from qkvary.storage.environment import now
from qkvary.storage.errors import BusyError, NewerFormatError, ResourceError
from qkvary.studies.running.data_sets import prepare_sets
from qkvary.studies.running.estimates import TimeEstimate
from qkvary.studies.running.live import (
    Display,
    LiveDisplay,
    PlainDisplay,
    Scene,
    SilentDisplay,
    WorkerLine,
)
from qkvary.studies.running.messages import STOPPING, Job, News
from qkvary.studies.running.recording import make_record, run_identity
from qkvary.studies.running.store import Store
from qkvary.studies.running.worker_process import WorkerProcess, describe_end
from qkvary.studies.study import Cell, Study

WORKER_MODULE = "qkvary.studies.running.worker"
MAX_DEATHS = 3
"""A run of which more workers than this have died counts as failed."""
MAX_STILLBORN = 3
"""After this many workers in a row that died before they came to life, the runner gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """How a study is run; nothing here changes a number that comes out."""

    workers: int | None = None
    """Worker processes; None for one per processor."""
    strict: bool = False
    """Whether failed and diverged runs make the exit code 1."""
    retry_failed: bool = False
    """Whether runs that failed before are made again."""
    checkpoint_seconds: float = 30.0
    """Seconds between two checkpoints of a run."""
    quiet: bool = False
    """Whether to print nothing at all."""
    worker_module: str = WORKER_MODULE
    """The program of the workers."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What became of the runs of a study."""

    planned: int
    """Runs of the study."""
    done: int
    """Runs that ended well."""
    failed: int
    """Runs that ended with an error."""
    diverged: int
    """Runs whose loss or gradient was not finite."""
    missing: int
    """Runs without a record."""
    made: int
    """Runs that the workers of this runner brought to an end."""
    seconds: float
    """How long the runner was at work."""
    exit_code: int
    """What the command should exit with."""
    message: str = ""
    """Why it ended early, if it did."""
    notes: tuple[str, ...] = ()
    """Everything unusual that was said on the way."""


def run_study(
    study: Study,
    store: Store,
    options: RunnerOptions | None = None,
    *,
    console: Console | None = None,
) -> RunSummary:
    """Make every run of ``study`` that is not in ``store`` yet.

    Ctrl-C and SIGTERM let each worker write a checkpoint and end; a second one ends all at once.

    Args:
        study: What to run.
        store: Where runs are kept.
        options: How.
        console: Where progress is shown; standard error by default.
    """
    return run_cells(study.name, study.cells(), store, options, console=console)


def run_cells(
    name: str,
    cells: Sequence[Cell],
    store: Store,
    options: RunnerOptions | None = None,
    *,
    console: Console | None = None,
) -> RunSummary:
    """Make those of ``cells`` that are not in ``store`` yet; as ``run_study``."""
    chosen = options or RunnerOptions()
    runner = _Runner(cells, store, chosen)
    runner.scene.name = name
    shown = console or Console(stderr=True)
    runner.display = _display(shown, runner.scene, chosen.quiet)
    try:
        with _signals(runner.signalled):
            return runner.run()
    finally:
        runner.display.close()


def _display(console: Console, scene: Scene, quiet: bool) -> Display:
    if quiet:
        return SilentDisplay()
    kind = LiveDisplay if console.is_terminal else PlainDisplay
    return kind(console, scene)


@contextmanager
def _signals(handler: Callable[[int, FrameType | None], None]) -> Generator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class _Runner:
    """One call of ``run_cells``."""

    def __init__(self, cells: Sequence[Cell], store: Store, options: RunnerOptions) -> None:
        self.store, self.options = store, options
        # One run may stand in several cells; it is made once.
        self.cells = tuple({cell.run_key: cell for cell in cells}.values())
        self.scene = Scene(name="", total=len(self.cells))
        self.display: Display = SilentDisplay()
        self.estimate = TimeEstimate()
        self.workers: list[WorkerProcess] = []
        self.selector = selectors.DefaultSelector()
        self.left: dict[int, Cell] = {}
        self.deaths: Counter[int] = Counter()
        self.counts: Counter[str] = Counter()
        self.notes: list[str] = []
        self.made = self.stillborn = self.started_workers = self.signal = 0
        self.told_to_stop = False
        self.exit_code, self.message = 0, ""
        self.began = time.monotonic()

    # ---- from beginning to end

    def run(self) -> RunSummary:
        try:
            self.survey()
        except NewerFormatError as error:
            self.give_up(error.exit_code, str(error))
        else:
            prepare_sets(self.left.values(), self.note)
            self.supervise()
        return self.summary()

    def survey(self) -> None:
        """Find out which runs are left; name damaged ones and open them again."""
        # Those that were not looked at yet are left, should one be found that ends it all.
        self.left = dict(enumerate(self.cells))
        for number, cell in enumerate(self.cells):
            status = self.look_at(cell)
            if status is not None:
                del self.left[number]
                self.count(status)

    def look_at(self, cell: Cell) -> str | None:
        """Return how a run ended, or None if it is to be made."""
        key = cell.run_key
        if self.store.state(key) != "done":
            return None
        problem = self.store.damage(key)
        record = None if problem else self.store.record(key)
        status = None if record is None else record.status
        again = self.options.retry_failed and status == "failed"
        # An earlier runner was not asked to keep it.
        again |= status == "done" and cell.keep_network and self.store.network(key) is None
        if problem is None and not again and self.store.is_tidy(key):
            return record.status if record else None
        try:
            claim = self.store.claim(key, run_identity(cell.run), again=again)
        except BusyError:
            return record.status if record else None
        if claim is None:
            return record.status if record else None
        for warning in claim.warnings:
            self.note(f"{cell.title}: {warning}")
        claim.release()
        return None

    def supervise(self) -> None:
        wanted = self.options.workers or os.cpu_count() or 1
        try:
            for _ in range(min(wanted, len(self.left))):
                self.start_worker()
            while self.workers:
                self.attend()
        except BaseException:
            for worker in self.workers:
                worker.kill()
            raise
        finally:
            self.selector.close()

    def summary(self) -> RunSummary:
        troubled = self.options.strict and (self.scene.failed or self.scene.diverged)
        if self.signal and self.left:
            self.exit_code = 128 + self.signal
        return RunSummary(
            planned=len(self.cells),
            done=self.counts["done"],
            failed=self.counts["failed"],
            diverged=self.counts["diverged"],
            missing=len(self.left),
            made=self.made,
            seconds=time.monotonic() - self.began,
            exit_code=self.exit_code or (1 if troubled else 0),
            message=self.message,
            notes=tuple(self.notes),
        )

    # ---- being told

    def signalled(self, number: int, _frame: FrameType | None) -> None:
        if self.signal:
            for worker in self.workers:
                worker.kill()
            self.display.close()
            os._exit(128 + number)
        self.signal = number

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.display.note(text)

    def give_up(self, code: int, message: str) -> None:
        if not self.exit_code:
            self.exit_code, self.message = code, message
        self.stop()

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()

    # ---- workers

    def job(self) -> Job:
        return Job(
            store=self.store.path.absolute(),
            cells=tuple(self.cells),
            checkpoint_seconds=self.options.checkpoint_seconds,
        )

    def start_worker(self) -> None:
        number = self.started_workers % (self.options.workers or os.cpu_count() or 1) + 1
        taken = {worker.number for worker in self.workers}
        while number in taken:
            number += 1
        self.started_workers += 1
        worker = WorkerProcess(number, self.options.worker_module, self.job())
        self.workers.append(worker)
        self.selector.register(worker.news_pipe, selectors.EVENT_READ, (worker, "news"))
        self.selector.register(worker.tail_pipe, selectors.EVENT_READ, (worker, "tail"))
        self.scene.workers[number] = WorkerLine()

    def attend(self) -> None:
        """Take in what the workers say, for a quarter of a second at most."""
        for key, _events in self.selector.select(timeout=0.25):
            worker, pipe = key.data
            if worker not in self.workers:
                continue
            if pipe == "tail":
                if not worker.read_tail():
                    self.selector.unregister(worker.tail_pipe)
                continue
            news = worker.read_news()
            if news is None:
                self.bury(worker)
                continue
            for item in news:
                self.hear(worker, item)
        if self.signal:
            if not self.told_to_stop:
                self.told_to_stop = True
                self.display.note(STOPPING)
            self.stop()
        self.display.refresh()

    def bury(self, worker: WorkerProcess) -> None:
        self.selector.unregister(worker.news_pipe)
        if worker.tail_pipe in self.selector.get_map():
            self.selector.unregister(worker.tail_pipe)
            while worker.read_tail():
                pass
        code = worker.wait()
        self.workers.remove(worker)
        self.scene.workers.pop(worker.number, None)
        if code == 0 or self.signal or self.exit_code:
            return
        self.stillborn = 0 if worker.ready else self.stillborn + 1
        if self.stillborn >= MAX_STILLBORN:
            said = worker.tail.splitlines()
            last = said[-1] if said else "it said nothing"
            message = f"no worker comes to life ({describe_end(code)}): {last}"
            self.give_up(ResourceError.exit_code, message)
            return
        # 143: somebody asked this worker alone to stop, and it left a checkpoint.
        if worker.cell is not None and code != 128 + signal.SIGTERM:
            self.mourn(worker, worker.cell, describe_end(code))
        if self.left:
            self.start_worker()

    def mourn(self, worker: WorkerProcess, number: int, end: str) -> None:
        """Count a death, and record the run as failed if it was one too many."""
        cell = self.cells[number]
        self.deaths[number] += 1
        died = f"{cell.title}: worker {worker.number} (process {worker.pid}) ended with {end}"
        if self.deaths[number] <= MAX_DEATHS:
            self.note(f"{died}; another one goes on")
            return
        tail = f"\n{worker.tail}" if worker.tail else ""
        message = f"{self.deaths[number]} workers died of this run, the last with {end}{tail}"
        try:
            claim = self.store.claim(cell.run_key, run_identity(cell.run))
        except BusyError:
            return
        if claim is None:
            return
        record = make_record(cell, status="failed", started=now(), message=message)
        claim.finish(record)
        self.note(f"{died}, the {self.deaths[number]}th time; the run counts as failed")
        self.settle(number, "failed", seconds=None)

    # ---- news

    def hear(self, worker: WorkerProcess, news: News) -> None:
        line = self.scene.workers.get(worker.number, WorkerLine())
        if news.kind == "ready":
            worker.ready = True
            line.title = "ready"
        elif news.kind == "started":
            worker.cell = news.cell
            self.scene.workers[worker.number] = WorkerLine(title=self.cells[news.cell].title)
        elif news.kind == "progress":
            line.step, line.steps, line.loss = news.step, news.steps, news.loss
        elif news.kind == "waiting":
            self.wait_for(worker, news)
        elif news.kind == "note":
            self.note(f"{self.cells[news.cell].title}: {news.text}")
        elif news.kind == "fatal":
            self.give_up(news.code, news.text)
        elif news.kind == "elsewhere":
            self.made_elsewhere(news.cell)
        else:
            worker.cell = None
            self.made += 1
            self.settle(news.cell, news.status, seconds=news.seconds, news=news)

    def wait_for(self, worker: WorkerProcess, news: News) -> None:
        """Show that others hold all runs that are left, and name them if they are not ours."""
        if self.is_ours(news.text):
            self.scene.workers[worker.number] = WorkerLine(title="waiting for the last runs")
            return
        title = f"waiting for {news.text}: {self.cells[news.cell].title}"
        self.scene.workers[worker.number] = WorkerLine(title=title)
        self.note(f"worker {worker.number} is {title}")

    def is_ours(self, owner: str) -> bool:
        return any(f"process {worker.pid} on" in owner for worker in self.workers)

    def made_elsewhere(self, number: int) -> None:
        if number in self.left:
            record = self.store.record(self.cells[number].run_key)
            self.settle(number, record.status if record else "done", seconds=None)

    def count(self, status: str) -> None:
        self.counts[status] += 1
        self.scene.done += 1
        self.scene.failed += status == "failed"
        self.scene.diverged += status == "diverged"

    def settle(
        self, number: int, status: str, *, seconds: float | None, news: News | None = None
    ) -> None:
        """Note that a run has ended."""
        if self.left.pop(number, None) is None:
            return
        cell = self.cells[number]
        self.count(status)
        if seconds is not None:
            self.estimate.add(cell, seconds)
        elapsed = time.monotonic() - self.began
        self.scene.runs_per_minute = 60.0 * self.made / elapsed if self.made else None
        left = tuple(self.left.values())
        self.scene.seconds_left = self.estimate.seconds_left(left, len(self.workers))
        if news is None:
            return
        result = news.text.splitlines()[0] if news.text else ""
        if not result and news.loss is not None:
            result = f"{cell.run.task.metric} {news.loss:.4g}"
        text = f"{cell.title}: {status}, {result} ({news.seconds:.1f} s)"
        if status != "done":
            self.notes.append(text)
            self.display.note(text)
        else:
            self.display.ended(text)
