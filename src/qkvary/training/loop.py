"""The training loop: one run from its configuration to its outcome, resumable at any step.

Every random draw is a pure function of the seed and the step: the global generator is seeded anew
at each step, so that no state of a generator has to be stored, and a run that was killed goes on
bit by bit as if it had not been. The log and the checkpoints are all that it leaves in its folder.

Knows nothing of studies or of who else may be at work.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from qkvary.nn.stack import Stack
from qkvary.storage.durable import free_bytes
from qkvary.storage.errors import DivergedError, UsageError
from qkvary.storage.journal import Journal, SilentJournal
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.manifest import FileEntry
from qkvary.storage.rotation import KEEP
from qkvary.tasks.contract import (
    AttentionExample,
    EvaluationContext,
    Generate,
    Ranks,
    Split,
    Task,
)
from qkvary.training.config import RunConfig, Way
from qkvary.training.distribution import Alone, Distribution
from qkvary.training.gradients import Gradients
from qkvary.training.guards import Guards
from qkvary.training.memory import is_out_of_memory, out_of_memory, require_device
from qkvary.training.optimizers import make_optimizer, set_learning_rate
from qkvary.training.progress import NOBODY, Event, RunState, Stopwatch, Watchers
from qkvary.training.run_log import bring_back, describe_gaps, join_gaps
from qkvary.training.schedules import learning_rate

JOURNAL_NAME = "metrics.jsonl"
CHECKPOINTS_NAME = "checkpoints"
CHECKPOINT_SECONDS = 30.0
"""Seconds of work between two checkpoints, so that short runs write none."""
LogEntry = Mapping[str, JsonValue]
"""``event`` and ``step``, and what belongs to that event."""
MOMENTS = 2
"""Numbers that Adam remembers of each weight."""
ROOM = 2.2
"""Checkpoints that should fit: an old one, a new one, and what else is written."""
EVENT_SECONDS = 0.25
"""Seconds between two pieces of news about progress."""

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a call of ``train`` ended."""

    status: Literal["done", "diverged", "stopped"]
    """``stopped`` left a checkpoint from which the same call goes on."""
    message: str
    """What was not finite, if the run diverged, and what the log lacks, if it was damaged."""
    metrics: Mapping[str, float | int | None]
    """``validation_*``, ``test_*``, ``final_train_loss``, ``steps``, ``steps_to_solve``."""
    timing: Mapping[str, float]
    """Seconds over all parts of the run, by what they were spent on; steps per second."""
    attention: AttentionExample | None
    """The attention maps of the trained network on one example; the first process finds them."""
    state_sha256: str
    """Digest of the final weights and optimizer state: equal runs have equal ones."""
    network: nn.Module
    """What was trained, as it is now; in evaluation mode when it is done. Where processes share it
    out, the first one has it in one piece then, and nobody before."""


def train(
    run: RunConfig,
    task: Task,
    directory: Path,
    *,
    stop: Callable[[], bool] = lambda: False,
    watchers: Watchers = NOBODY,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    keep: int = KEEP,
    distribution: Distribution | None = None,
    way: Way | None = None,
    generate: Generate | None = None,
) -> Outcome:
    """Train one network in ``directory``, going on where an earlier call was stopped or killed.

    The caller owns the folder (a store hands it out to one process at a time). Where several
    processes train together, all of them call this with the same arguments.

    Args:
        run: What to train, and how.
        task: The task that ``run.task`` names.
        directory: Where the log and the checkpoints are; it must exist.
        stop: Asked before each step; once it says yes, a checkpoint is written and training ends.
        watchers: Who is told how it goes.
        checkpoint_seconds: Seconds between checkpoints.
        keep: Checkpoints that are left, the newest ones; at least 1.
        distribution: The processes that train together; one by default.
        way: How and where steps are computed from here on, where the run is not to go on as it
            began; the log says what is different.
        generate: Handed to the task when it scores the network.

    Raises:
        DamagedError: if there are checkpoints, and all of them are damaged.
        UsageError: if the folder belongs to another run, or there is no such device.
        ResourceError: if the disk is full, broken or not writable, or memory ran out.
        ValueError: if no checkpoint is to be left.
    """
    if keep < 1:
        raise ValueError(f"expected to keep at least 1 checkpoint, got {keep}")
    computed = run if way is None else run.computed(way)
    require_device(computed.device)
    threads = torch.get_num_threads()
    torch.set_num_threads(computed.threads)
    loop: _Loop | None = None
    try:
        others = distribution or Alone()
        loop = _Loop(run, computed, task, directory, watchers, others, keep, generate)
        return loop.finish(loop.advance(stop, checkpoint_seconds))
    except DivergedError as error:
        return cast("_Loop", loop).diverge(str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        step, size = loop.state.step if loop else 0, distribution.size if distribution else 1
        raise out_of_memory(computed, step=step, processes=size) from error
    finally:
        if loop is not None:
            loop.journal.close()
        torch.set_num_threads(threads)


class _Loop:
    """One call of ``train``."""

    def __init__(
        self,
        begun: RunConfig,
        run: RunConfig,
        task: Task,
        directory: Path,
        watchers: Watchers,
        distribution: Distribution,
        keep: int,
        generate: Generate | None,
    ) -> None:
        self.generate = generate
        self.run, self.task, self.directory, self.watchers = run, task, directory, watchers
        self.distribution, self.keep = distribution, keep
        self.changed = begun.way.differences(run.way)
        self.key = begun.run_key(task.data_fingerprint)
        self.state = RunState()
        self.watch = Stopwatch(self.state)
        self.model = self.build()
        self.placed = self.place()
        self.optimizer = make_optimizer(self.model, run.network, run.training.optimizer)
        self.gradients = Gradients(run, task, self.placed, distribution)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.journal = Journal(directory / JOURNAL_NAME) if self.is_writer else SilentJournal()
        self.last_norm = math.nan
        self.stored_step: int | None = None
        self.resume()
        self.guards = Guards(run.training.guards, self.state.guards)
        self.warn_of_a_small_disk()
        # To bring a network together takes all processes, whoever wants to see it.
        self.is_sampled = self.anybody(watchers.sample is not None)

    # ---- where it stands

    @property
    def is_writer(self) -> bool:
        return self.distribution.rank == 0

    def build(self) -> nn.Module:
        run = self.run
        return self.task.build(run.network, run.seed).to(run.device, _DTYPES[run.dtype])

    def place(self) -> nn.Module:
        execution = self.run.training.execution
        for module in self.model.modules():
            if isinstance(module, Stack):
                module.recompute_blocks = execution.recompute_blocks
        placed = self.distribution.place(self.model, execution.precision)
        if execution.compile:
            placed.compile()
        return placed

    def warn(self, message: str) -> None:
        self.watchers.on_event(
            Event(step=self.state.step, steps=self.run.training.steps, warning=message)
        )

    def warn_of_a_small_disk(self) -> None:
        """Say at the start that checkpoints will not fit: later is too late to make room."""
        numbers = sum(p.numel() * p.element_size() for p in self.parameters)
        needed, free = int(ROOM * (1 + MOMENTS) * numbers), free_bytes(self.directory)
        if self.is_writer and free is not None and free < needed:
            self.warn(
                f"{self.directory} has {free:,} bytes left, and two checkpoints take about "
                f"{needed:,}: make room, or choose another folder (--out)"
            )

    def resume(self) -> None:
        about = self.distribution.load(
            self.directory / CHECKPOINTS_NAME,
            model=self.model,
            optimizer=self.optimizer,
            accept=self.accept,
            report=self.warn,
            keep=self.keep,
        )
        if about is None:
            self.journal.rewind(FileEntry.of(b""))
            return
        stored = RunState.from_json(cast("dict[str, Any]", about["state"]))
        for field in dataclasses.fields(stored):
            setattr(self.state, field.name, getattr(stored, field.name))
        self.stored_step = self.state.step
        if isinstance(self.journal, Journal):
            self.bring_back_log(self.journal, _mark(about))
        self.log(
            "resumed",
            torch=torch.__version__,
            seconds=self.state.seconds["training"],
            processes=self.distribution.size,
            **({"changed": self.changed} if self.changed else {}),
        )

    def bring_back_log(self, journal: Journal, mark: FileEntry) -> None:
        torn = journal.cut
        cut = bring_back(journal, mark, self.state.step)
        if cut is not None:
            self.state.log_gaps = join_gaps(self.state.log_gaps, cut.gaps)
            if cut.message:
                self.warn(cut.message)
        elif torn:
            kind = "zeroed" if b"\0" in torn else "torn"
            self.warn(f"{journal.path}: a {kind} last line of {len(torn):,} bytes was cut")

    def accept(self, about: Mapping[str, JsonValue]) -> None:
        if about.get("run_key") != self.key:
            raise UsageError(
                f"{self.directory} belongs to another run ({about.get('run_key')}, this one is "
                f"{self.key}); choose another folder"
            )

    def checkpoint(self) -> None:
        self.watch.lap("training")
        if self.state.step == self.stored_step:
            # Not twice: the first would be removed before the second has its name.
            return
        mark = self.journal.mark()
        about: dict[str, JsonValue] = {
            "run_key": self.key,
            "torch": torch.__version__,
            "threads": self.run.threads,
            "processes": self.distribution.size,
            "journal": {"size": mark.size, "sha256": mark.sha256},
            "state": self.state.to_json(),
        }
        self.distribution.save(
            self.directory / CHECKPOINTS_NAME,
            step=self.state.step,
            model=self.model,
            optimizer=self.optimizer,
            about=about,
            keep=self.keep,
        )
        self.stored_step = self.state.step
        self.watch.lap("other")

    def log(self, event: str, **values: JsonValue) -> None:
        entry: LogEntry = {"event": event, "step": self.state.step, **values}
        self.journal.append(entry)
        if self.is_writer:
            self.watchers.on_log(entry)

    # ---- steps

    def advance(self, stop: Callable[[], bool], checkpoint_seconds: float) -> bool:
        """Make the steps that are left; return whether all are made."""
        training, state = self.run.training, self.state
        self.watch.lap("other")
        self.placed.train()
        saved = told = time.perf_counter()
        while state.step < training.steps and not self.is_over():
            if self.anybody(stop()):
                if state.step:
                    self.checkpoint()
                return False
            self.step()
            if state.step % training.log_every == 0 or state.step == training.steps:
                self.log_loss()
            if state.step % training.evaluate_every == 0 or state.step == training.steps:
                self.validate()
            now = time.perf_counter()
            if now - told >= EVENT_SECONDS:
                told = now
                self.tell()
            if self.anybody(now - saved >= checkpoint_seconds):
                self.checkpoint()
                saved = time.perf_counter()
        self.log_loss()
        self.watch.lap("training")
        return True

    def anybody(self, wishes: bool) -> bool:
        """Whether a process wishes it: all do the same at the same step."""
        return self.distribution.add([float(wishes)])[0] > 0.0

    def is_over(self) -> bool:
        return self.run.training.stop_when_solved and self.state.steps_to_solve is not None

    def step(self) -> None:
        training, step = self.run.training, self.state.step
        loss = self.gradients.find(step)
        norm = self.norm()
        self.last_norm = norm.item()
        if self.allows(step, loss, self.last_norm):
            self.clip(norm)
            rate = learning_rate(
                training.schedule,
                peak=training.optimizer.learning_rate,
                step=step,
                steps=training.steps,
            )
            set_learning_rate(self.optimizer, rate)
            self.optimizer.step()
            self.state.loss_sum += loss
            self.state.loss_count += 1
        self.optimizer.zero_grad(set_to_none=True)
        self.state.step = step + 1

    def allows(self, step: int, loss: float, norm: float) -> bool:
        values = {"loss": loss, "gradient_norm": norm}
        try:
            allowed = self.guards.allows(step, loss=loss, norm=norm)
        except DivergedError:
            self.state.train_loss = loss
            self.log("diverged", **values)
            raise
        if not allowed:
            self.log("skipped", **values)
        return allowed

    def norm(self) -> Tensor:
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        return self.distribution.norm(gradients)

    def clip(self, norm: Tensor) -> None:
        limit = self.run.training.optimizer.gradient_clip
        if limit is not None and self.last_norm + 1e-6 > limit:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, limit, norm, foreach=True)

    def log_loss(self) -> None:
        state = self.state
        if not state.loss_count:
            # Every step since the last entry was skipped, and has an entry that says so.
            return
        state.train_loss = state.loss_sum / state.loss_count
        state.loss_sum, state.loss_count = 0.0, 0
        self.watch.lap("training")
        self.log(
            "train",
            loss=state.train_loss,
            seconds=state.seconds["training"],
            learning_rate=self.optimizer.param_groups[0]["lr"],
            gradient_norm=self.last_norm,
        )

    def tell(self) -> None:
        state = self.state
        loss = state.loss_sum / state.loss_count if state.loss_count else state.train_loss
        self.watchers.on_event(Event(step=state.step, steps=self.run.training.steps, loss=loss))

    # ---- scores

    def evaluate(self, split: Split) -> dict[str, float]:
        self.placed.eval()
        ranks = Ranks(
            rank=self.distribution.rank, size=self.distribution.size, add=self.distribution.add
        )
        with torch.no_grad(), self.gradients.precision():
            context = EvaluationContext(ranks=ranks, generate=self.generate)
            scores = self.task.evaluate(self.placed, split, context)
        self.placed.train()
        return {name: float(score) for name, score in scores.items()}

    def validate(self) -> None:
        state, training = self.state, self.run.training
        self.watch.lap("training")
        state.validation = self.evaluate("validation")
        self.watch.lap("evaluation")
        self.log("validation", seconds=state.seconds["training"], **state.validation)
        if self.is_sampled:
            self.placed.eval()
            network = self.whole()
            if self.is_writer and self.watchers.sample is not None:
                self.log("sample", text=self.watchers.sample(network))
            self.placed.train()
        if training.solve_threshold is None or state.steps_to_solve is not None:
            return
        score = state.validation[self.task.metric]
        better = score - training.solve_threshold
        if (better if self.task.higher_is_better else -better) >= 0.0:
            state.steps_to_solve = state.step

    def finish(self, complete: bool) -> Outcome:
        if not complete:
            return self.outcome("stopped")
        scores = self.evaluate("test")
        self.placed.eval()
        network, attention = self.whole(), None
        if self.is_writer:
            with torch.no_grad():
                attention = self.task.attention_example(network)
        self.watch.lap("evaluation")
        self.log("test", seconds=self.state.seconds["training"], **scores)
        return self.outcome("done", network=network, scores=scores, attention=attention)

    def whole(self) -> nn.Module:
        """The network in one piece; where it is shared out, only the first process gets it."""
        return self.distribution.whole(self.model, self.build)

    def diverge(self, message: str) -> Outcome:
        # The network as it was before the step that went wrong.
        self.checkpoint()
        return self.outcome("diverged", message=message)

    def outcome(
        self,
        status: Literal["done", "diverged", "stopped"],
        *,
        message: str = "",
        network: nn.Module | None = None,
        scores: Mapping[str, float] | None = None,
        attention: AttentionExample | None = None,
    ) -> Outcome:
        state = self.state
        self.journal.mark()
        metrics: dict[str, float | int | None] = {
            "steps": state.step,
            "steps_to_solve": state.steps_to_solve,
            "final_train_loss": state.train_loss,
        }
        metrics |= {f"validation_{name}": value for name, value in state.validation.items()}
        metrics |= {f"test_{name}": value for name, value in (scores or {}).items()}
        digest = self.distribution.digest(self.model, self.optimizer)
        self.watch.lap("other")
        training_seconds = state.seconds["training"]
        timing = {
            "training_seconds": training_seconds,
            "evaluation_seconds": state.seconds["evaluation"],
            "total_seconds": sum(state.seconds.values()),
            "cpu_seconds": state.cpu_seconds,
            "steps_per_second": state.step / training_seconds if training_seconds else 0.0,
        }
        return Outcome(
            status=status,
            message="; ".join(filter(None, [message, describe_gaps(state.log_gaps)])),
            metrics=metrics,
            timing=timing,
            attention=attention,
            state_sha256=digest,
            network=self.model if network is None else network,
        )


def _mark(about: Mapping[str, JsonValue]) -> FileEntry:
    mark = cast("dict[str, Any]", about["journal"])
    return FileEntry(size=mark["size"], sha256=mark["sha256"])
