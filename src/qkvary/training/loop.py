"""The training loop: one run from its configuration to its outcome, resumable at any step.

Every random draw is a pure function of the seed and the step: the global generator is seeded anew
at each step, so that no state of a generator has to be stored, and a run that was killed goes on
bit by bit as if it had not been. The log and the checkpoints are all that it leaves in its folder.

Knows nothing of studies or of who else may be at work.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from qkvary.checkpoints.training_state import (
    TrainingState,
    load_training_state,
    save_training_state,
    state_sha256,
)
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.journal import Journal
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.manifest import FileEntry
from qkvary.tasks.contract import AttentionExample, Batch, Split, Task
from qkvary.training.config import RunConfig
from qkvary.training.optimizers import (
    make_optimizer,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
)
from qkvary.training.progress import Event, RunState, Stopwatch
from qkvary.training.schedules import learning_rate

JOURNAL_NAME = "metrics.jsonl"
CHECKPOINTS_NAME = "checkpoints"
CHECKPOINT_SECONDS = 30.0
"""Seconds of work between two checkpoints, so that short runs write none."""
EVENT_SECONDS = 0.25
"""Seconds between two pieces of news about progress."""

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a call of ``train`` ended."""

    status: Literal["done", "diverged", "stopped"]
    """``stopped`` left a checkpoint from which the same call goes on."""
    message: str
    """What was not finite, if the run diverged."""
    metrics: Mapping[str, float | int | None]
    """``validation_*``, ``test_*``, ``final_train_loss``, ``steps``, ``steps_to_solve``."""
    timing: Mapping[str, float]
    """Seconds over all parts of the run, by what they were spent on; steps per second."""
    attention: AttentionExample | None
    """The attention maps of the trained network on one example."""
    state_sha256: str
    """Digest of the final weights and optimizer state: equal runs have equal ones."""
    network: nn.Module
    """What was trained, as it is now; in evaluation mode when it is done."""


class _NotFiniteError(Exception):
    pass


def step_seed(seed: int, step: int) -> int:
    """Return the seed of the global generator for one step of a run."""
    digest = hashlib.sha256(f"qkvary step {seed} {step}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def train(
    run: RunConfig,
    task: Task,
    directory: Path,
    *,
    stop: Callable[[], bool] = lambda: False,
    on_event: Callable[[Event], None] = lambda _event: None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Outcome:
    """Train one network in ``directory``, going on where an earlier call was stopped or killed.

    The caller owns the folder (a store hands it out to one process at a time).

    Args:
        run: What to train, and how.
        task: The task that ``run.task`` names.
        directory: Where the log and the checkpoints are; it must exist.
        stop: Asked before each step; once it says yes, a checkpoint is written and training ends.
        on_event: Told how it goes, at most four times a second.
        checkpoint_seconds: Seconds between checkpoints.

    Raises:
        DamagedError: if there are checkpoints, and all of them are damaged.
        UsageError: if the folder belongs to another run.
        ResourceError: if the disk is full, broken or not writable.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(run.threads)
    loop = _Loop(run, task, directory, on_event)
    try:
        return loop.finish(loop.advance(stop, checkpoint_seconds))
    except _NotFiniteError as error:
        return loop.diverge(str(error))
    finally:
        loop.journal.close()
        torch.set_num_threads(threads)


class _Loop:
    """One call of ``train``."""

    def __init__(
        self, run: RunConfig, task: Task, directory: Path, on_event: Callable[[Event], None]
    ) -> None:
        self.run, self.task, self.directory, self.on_event = run, task, directory, on_event
        self.key = run.run_key(task.data_fingerprint)
        self.state = RunState()
        self.watch = Stopwatch(self.state)
        self.model = task.build(run.network, run.seed).to(run.device, _DTYPES[run.dtype])
        self.optimizer = make_optimizer(self.model, run.network, run.training.optimizer)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.journal = Journal(directory / JOURNAL_NAME)
        if self.journal.cut:
            self.warn(f"{self.journal.path}: a torn last line of {self.journal.cut} bytes was cut")
        self.resume()

    # ---- where it stands

    def warn(self, message: str) -> None:
        self.on_event(Event(step=self.state.step, steps=self.run.training.steps, warning=message))

    def resume(self) -> None:
        stored = load_training_state(
            self.directory / CHECKPOINTS_NAME, accept=self.accept, report=self.warn
        )
        if stored is None:
            self.journal.rewind(FileEntry.of(b""))
            return
        self.model.load_state_dict(stored.weights)
        restore_optimizer(self.optimizer, stored.optimizer)
        for name, value in cast("dict[str, Any]", stored.about["state"]).items():
            setattr(self.state, name, value)
        self.journal.rewind(_mark(stored.about))
        seconds = self.state.seconds["training"]
        self.log("resumed", torch=torch.__version__, seconds=seconds)

    def accept(self, about: Mapping[str, JsonValue]) -> None:
        if about.get("run_key") != self.key:
            raise UsageError(
                f"{self.directory} belongs to another run ({about.get('run_key')}, this one is "
                f"{self.key}); choose another folder"
            )
        if not self.journal.holds(_mark(about)):
            raise DamagedError(f"{self.journal.path} was changed since the checkpoint")

    def checkpoint(self) -> None:
        self.watch.lap("training")
        mark = self.journal.mark()
        about: dict[str, JsonValue] = {
            "run_key": self.key,
            "torch": torch.__version__,
            "threads": self.run.threads,
            "journal": {"size": mark.size, "sha256": mark.sha256},
            "state": self.state.to_json(),
        }
        state = TrainingState(
            step=self.state.step,
            weights=self.model.state_dict(),
            optimizer=optimizer_tensors(self.optimizer),
            about=about,
        )
        save_training_state(self.directory / CHECKPOINTS_NAME, state)
        self.watch.lap("other")

    def log(self, event: str, **values: JsonValue) -> None:
        self.journal.append({"event": event, "step": self.state.step, **values})

    # ---- steps

    def advance(self, stop: Callable[[], bool], checkpoint_seconds: float) -> bool:
        """Make the steps that are left; return whether all are made."""
        training, state = self.run.training, self.state
        self.watch.lap("other")
        self.model.train()
        saved = told = time.perf_counter()
        while state.step < training.steps and not self.is_over():
            if stop():
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
            if now - saved >= checkpoint_seconds:
                self.checkpoint()
                saved = time.perf_counter()
        if state.loss_count:
            self.log_loss()
        self.watch.lap("training")
        return True

    def is_over(self) -> bool:
        return self.run.training.stop_when_solved and self.state.steps_to_solve is not None

    def step(self) -> None:
        run, training, step = self.run, self.run.training, self.state.step
        _seed_everything(step_seed(run.seed, step), run.device)
        batch = _moved(self.task.batch(step, training.batch_size, run.seed), run.device)
        loss = self.task.loss(self.model, batch)
        loss.backward()
        value, norm = loss.item(), self.clip()
        if not (math.isfinite(value) and math.isfinite(norm)):
            what = f"loss {value}" if not math.isfinite(value) else f"gradient norm {norm}"
            self.state.train_loss = value
            self.log("diverged", loss=value, gradient_norm=norm)
            raise _NotFiniteError(f"{what} at step {step}; the weights before it were kept")
        rate = learning_rate(
            training.schedule,
            peak=training.optimizer.learning_rate,
            step=step,
            steps=training.steps,
        )
        set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.state.loss_sum += value
        self.state.loss_count += 1
        self.state.step = step + 1

    def clip(self) -> float:
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        value = norm.item()
        limit = self.run.training.optimizer.gradient_clip
        if limit is not None and math.isfinite(value) and value + 1e-6 > limit:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, limit, norm, foreach=True)
        return value

    def log_loss(self) -> None:
        state = self.state
        state.train_loss = state.loss_sum / state.loss_count
        state.loss_sum, state.loss_count = 0.0, 0
        self.watch.lap("training")
        self.log("train", loss=state.train_loss, seconds=state.seconds["training"])

    def tell(self) -> None:
        state = self.state
        loss = state.loss_sum / state.loss_count if state.loss_count else state.train_loss
        self.on_event(Event(step=state.step, steps=self.run.training.steps, loss=loss))

    # ---- scores

    def evaluate(self, split: Split) -> dict[str, float]:
        self.model.eval()
        with torch.no_grad():
            scores = self.task.evaluate(self.model, split)
        self.model.train()
        return {name: float(score) for name, score in scores.items()}

    def validate(self) -> None:
        state, training = self.state, self.run.training
        self.watch.lap("training")
        state.validation = self.evaluate("validation")
        self.watch.lap("evaluation")
        self.log("validation", seconds=state.seconds["training"], **state.validation)
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
        self.model.eval()
        with torch.no_grad():
            attention = self.task.attention_example(self.model)
        self.watch.lap("evaluation")
        self.log("test", seconds=self.state.seconds["training"], **scores)
        return self.outcome("done", scores=scores, attention=attention)

    def diverge(self, message: str) -> Outcome:
        self.watch.lap("training")
        return self.outcome("diverged", message=message)

    def outcome(
        self,
        status: Literal["done", "diverged", "stopped"],
        *,
        message: str = "",
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
        digest = state_sha256(self.model.state_dict(), optimizer_tensors(self.optimizer))
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
            message=message,
            metrics=metrics,
            timing=timing,
            attention=attention,
            state_sha256=digest,
            network=self.model,
        )


def _mark(about: Mapping[str, JsonValue]) -> FileEntry:
    mark = cast("dict[str, Any]", about["journal"])
    return FileEntry(size=mark["size"], sha256=mark["sha256"])


def _seed_everything(seed: int, device: str) -> None:
    if device == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _moved(batch: Batch, device: str) -> Batch:
    if device == "cpu":
        return batch
    inputs: Tensor = batch.inputs.to(device)
    return Batch(inputs, batch.targets.to(device))
