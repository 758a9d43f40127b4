"""The training loop. It trains one configuration, and can stop and resume after any step.

Every random draw depends only on the seed and the step, because the global generator is reseeded at
each step. So no generator state is stored, and a killed run resumes bit for bit. A run writes only
its log and its checkpoints. Independent of studies.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, cast

import torch
from torch import nn

from qkvary.arch.parts import returned
from qkvary.nn.attention import anneal
from qkvary.nn.blocks import Stack, compile_blocks
from qkvary.nn.devices import require_device
from qkvary.nn.threads import use_threads
from qkvary.storage.environment import is_out_of_memory
from qkvary.storage.errors import DivergedError
from qkvary.storage.journal import JOURNAL_NAME, Journal, SilentJournal, parse_journal
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.manifest import CHECKPOINT_SECONDS, CHECKPOINTS_NAME, DEFAULT_KEEP, FileEntry
from qkvary.tasks.contract import EvaluationContext, Split, Task
from qkvary.tasks.examples import AttentionExample
from qkvary.text.names import listed
from qkvary.training.config import ROUNDING_VERSION, RunConfig
from qkvary.training.distribution import SINGLE_PROCESS, Distribution, Gradients
from qkvary.training.memory import out_of_memory, require_training_memory
from qkvary.training.optimizers import make_optimizer, set_schedule
from qkvary.training.progress import (
    NO_CALLBACKS,
    BestStep,
    Callbacks,
    Event,
    Guards,
    RunState,
    Stopwatch,
)
from qkvary.training.run_log import open_log

_VERSIONS: Mapping[str, JsonValue] = {
    "torch": str(torch.__version__),
    "rounding": ROUNDING_VERSION,
}
"""Versions that affect the last bits of results. For old checkpoints, ``rounding`` is 0."""
PROGRESS_SECONDS = 0.25
"""Minimum seconds between progress events."""

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a call of ``train``."""

    status: Literal["done", "diverged", "stopped"]
    """After ``stopped``, the same call resumes the run from its last checkpoint, if it has one."""
    message: str
    """The reason why the run diverged; empty if it did not."""
    metrics: Mapping[str, float | int | None]
    """``validation_*``, ``test_*``, ``final_train_loss``, ``steps``, ``steps_to_solve``."""
    timing: Mapping[str, float]
    """Seconds of each phase over all calls of ``train``, and steps per second."""
    attention: AttentionExample | None
    """Attention maps of the trained network on one example; on rank 0 only."""
    state_sha256: str
    """Digest of the final weights and optimizer state; equal for equal runs."""
    network: nn.Module
    """The network. After ``done``, it is in evaluation mode, and unsharded on rank 0."""


def train(
    run: RunConfig,
    task: Task,
    directory: Path,
    *,
    stop: Callable[[], bool] = lambda: False,
    callbacks: Callbacks = NO_CALLBACKS,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    keep: int = DEFAULT_KEEP,
    distribution: Distribution = SINGLE_PROCESS,
    stored: RunConfig | None = None,
) -> Outcome:
    """Train one network in ``directory``, resuming from the newest valid checkpoint.

    The caller owns the folder, and the folder must exist. If several processes train together, all
    must call this function. Only their callbacks may differ.

    ``stop`` is called before each step. In a single process, it is also called between
    micro-batches and between the batches of an evaluation. If ``stop`` returns True, training
    writes a checkpoint of the last full step, if any, and stops. A resumed run repeats an
    evaluation that was stopped.

    ``stored`` is the run with its stored execution settings. It is given if other settings are
    requested, and the log records the differences.
    """
    require_device(run.device)
    require_training_memory(run, processes=distribution.size)
    trainer: _Trainer | None = None
    try:
        with use_threads(run.threads):
            trainer = _Trainer(
                run, stored or run, task, directory, stop, callbacks, distribution, keep
            )
            return trainer.train(checkpoint_seconds)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        step = trainer.state.step if trainer else 0
        raise out_of_memory(run, step=step, processes=distribution.size) from error
    finally:
        if trainer is not None:
            trainer.journal.close()


class _StoppedError(Exception):
    """Ends the training because ``stop`` returned True."""


class _Trainer:
    def __init__(
        self,
        run: RunConfig,
        stored: RunConfig,
        task: Task,
        directory: Path,
        stop: Callable[[], bool],
        callbacks: Callbacks,
        distribution: Distribution,
        keep: int,
    ) -> None:
        self.run, self.task, self.directory, self.callbacks = run, task, directory, callbacks
        self.stop, self.distribution, self.keep = stop, distribution, keep
        self.changed = stored.execution_settings.differences(run.execution_settings)
        self.key = stored.run_key
        self.state = RunState()
        self.stopwatch = Stopwatch(self.state)
        self.model, settings = self.build(), run.training.execution
        for module in self.model.modules():
            if isinstance(module, Stack):
                module.recompute_blocks = settings.recompute_blocks
        if settings.compile:
            compile_blocks(self.model)
        self.wrapped = distribution.wrap(self.model, settings.precision)
        self.optimizer = make_optimizer(self.model, run.network, run.training.optimizer)
        self.gradients = Gradients(run, task, self.wrapped, distribution)
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.last_norm = math.nan
        self.stored_step: int | None = None
        self.resume()
        self.guards = Guards(run.training.guards, self.state.guards)
        # Gathering the network is collective, even if only one rank generates samples.
        self.is_sampled = self.any_rank(callbacks.sample is not None)

    # ---- state and checkpoints

    def build(self) -> nn.Module:
        run = self.run
        # For a user's parts that take initial values from the global generator.
        torch.manual_seed(run.seed)
        built = returned(self.task, "build", self.task.build(run.network, run.seed), nn.Module)
        network = built.to(run.device, _DTYPES[run.dtype])
        self.anneal(network)
        return network

    def anneal(self, network: nn.Module) -> None:
        """Set the softmax temperature of the current step, if the run anneals it."""
        if self.run.training.temperature is not None:
            anneal(network, self.run.training.temperature_factor(self.state.step))

    def warn(self, message: str) -> None:
        self.callbacks.on_event(
            Event(step=self.state.step, steps=self.run.training.steps, warning=message)
        )

    def resume(self) -> None:
        about = self.distribution.load(
            self.directory / CHECKPOINTS_NAME,
            model=self.model,
            optimizer=self.optimizer,
            key=self.key,
            report=self.warn,
        )
        if about is None:
            self.journal = self.open_journal()
            return
        self.state = RunState.from_json(cast("dict[str, Any]", about["state"]))
        self.stopwatch.state = self.state
        self.stored_step = self.state.step
        self.anneal(self.model)
        self.journal = self.open_journal(FileEntry(**cast("dict[str, Any]", about["journal"])))
        before = {"rounding": 0, **about}
        versions = {key: (before[key], now) for key, now in _VERSIONS.items() if before[key] != now}
        changed = {**self.changed, **versions}
        self.log(
            "resumed",
            **_VERSIONS,
            seconds=self.state.seconds["training"],
            processes=self.distribution.size,
            **({"changed": changed} if changed else {}),
        )

    def open_journal(self, mark: FileEntry | None = None) -> Journal | SilentJournal:
        """Open the journal.

        Without ``mark``, the journal is empty. With ``mark``, the journal is cut to the length that
        it had at a checkpoint.
        """
        if not self.distribution.is_first:
            return SilentJournal()
        path = self.directory / JOURNAL_NAME
        if mark is None:
            return Journal(path, b"")
        journal, damage = open_log(path, mark, self.state.step)
        if damage:
            self.warn(damage)
        return journal

    def checkpoint(self) -> None:
        self.stopwatch.lap("training")
        if self.state.step == self.stored_step:
            # This step is stored. Writing it again would remove the first copy before the second is
            # in place.
            return
        mark = self.journal.mark()
        about: dict[str, JsonValue] = {
            "run_key": self.key,
            **_VERSIONS,
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
        self.stopwatch.lap("other")

    def log(self, event: str, **values: JsonValue) -> None:
        entry: dict[str, JsonValue] = {"event": event, "step": self.state.step, **values}
        self.journal.append(entry)
        if self.distribution.is_first:
            self.callbacks.on_log(entry)

    # ---- steps

    def train(self, checkpoint_seconds: float) -> Outcome:
        """Run the remaining steps and the test. Write a checkpoint if the run ends early."""
        try:
            self.advance(checkpoint_seconds)
            return self.finish()
        except _StoppedError:
            # Drop the gradient of a step that was stopped between two micro-batches.
            self.optimizer.zero_grad(set_to_none=True)
            if self.state.step:
                self.checkpoint()
            return self.outcome("stopped")
        except DivergedError as error:
            # Stores the network as it was before the diverged step.
            self.checkpoint()
            return self.outcome("diverged", message=str(error))

    def stop_within_step(self, *_: object) -> None:
        """Stop if ``stop`` returns True. Several processes can only stop between two steps."""
        if self.distribution.size == 1 and self.stop():
            raise _StoppedError

    def advance(self, checkpoint_seconds: float) -> None:
        """Run the remaining steps."""
        training, state = self.run.training, self.state
        self.stopwatch.lap("other")
        self.wrapped.train()
        saved = self.reported = time.perf_counter()
        if self.any_rank(self.lacks_validation()):
            self.validate()
        self.offer_network()
        while state.step < training.steps:
            if training.stop_when_solved and state.steps_to_solve is not None:
                break
            if self.any_rank(self.stop()):
                raise _StoppedError
            self.step()
            if state.step % training.log_every == 0 or state.step == training.steps:
                self.log_loss()
            if self.is_validation_due():
                self.validate()
            self.offer_network()
            self.report_progress()
            if self.any_rank(time.perf_counter() - saved >= checkpoint_seconds):
                self.checkpoint()
                saved = time.perf_counter()
        self.log_loss()
        self.stopwatch.lap("training")

    def is_validation_due(self) -> bool:
        """Return whether a validation follows this step."""
        step, training = self.state.step, self.run.training
        return step % training.evaluate_every == 0 or step == training.steps

    def lacks_validation(self) -> bool:
        """Return whether the validation after this step is missing, because the run was stopped."""
        if not (self.state.step and self.is_validation_due() and self.distribution.is_first):
            return False
        log = parse_journal((self.directory / JOURNAL_NAME).read_bytes(), where=JOURNAL_NAME)
        known = (one["step"] for one in log.events if one["event"] == "validation")
        return self.state.step not in known

    def any_rank(self, condition: bool) -> bool:
        """Return whether the condition holds on any rank, so that all ranks act alike."""
        return self.distribution.all_reduce([float(condition)])[0] > 0.0

    def step(self) -> None:
        """Take one training step. A stop between two micro-batches abandons the step."""
        step = self.state.step

        def between(done: float) -> None:
            self.report_progress(done)
            self.stop_within_step()

        loss = self.gradients.accumulate(step, between)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = self.distribution.total_norm(gradients)
        self.last_norm = norm.item()
        values = {"loss": loss, "gradient_norm": self.last_norm}
        try:
            is_allowed = self.guards.allows(step, loss=loss, norm=self.last_norm)
        except DivergedError:
            self.state.train_loss = loss
            self.log("diverged", **values)
            raise
        if is_allowed:
            limit = self.run.training.optimizer.gradient_clip
            if limit is not None and self.last_norm + 1e-6 > limit:
                torch.nn.utils.clip_grads_with_norm_(self.parameters, limit, norm, foreach=True)
            set_schedule(self.optimizer, self.run.training, step)
            self.optimizer.step()
            self.state.loss_sum += loss
            self.state.loss_count += 1
        else:
            self.log("skipped", **values)
        self.optimizer.zero_grad(set_to_none=True)
        self.state.step = step + 1
        self.anneal(self.model)

    def log_loss(self) -> None:
        state = self.state
        if not state.loss_count:
            # All steps since the last entry were skipped, and logged as skipped.
            return
        state.train_loss = state.loss_sum / state.loss_count
        state.loss_sum, state.loss_count = 0.0, 0
        self.stopwatch.lap("training")
        self.log(
            "train",
            loss=state.train_loss,
            seconds=state.seconds["training"],
            learning_rate=self.optimizer.param_groups[0]["lr"],
            gradient_norm=self.last_norm,
        )

    def report_progress(self, part: float = 0.0) -> None:
        """Send a progress event, at most one per ``PROGRESS_SECONDS``.

        ``part`` is the share of the next step that is done.
        """
        now = time.perf_counter()
        if now - self.reported < PROGRESS_SECONDS:
            return
        self.reported, state, steps = now, self.state, self.run.training.steps
        loss = state.loss_sum / state.loss_count if state.loss_count else state.train_loss
        self.callbacks.on_event(Event(step=state.step, steps=steps, part=part, loss=loss))

    # ---- scores

    def evaluate(self, split: Split) -> dict[str, float]:
        self.wrapped.eval()
        context = EvaluationContext(processes=self.distribution, generate=self.callbacks.generate)
        checked = self.wrapped.register_forward_pre_hook(self.stop_within_step)
        with checked, torch.no_grad(), self.gradients.precision():
            scores = self.task.evaluate(self.wrapped, split, context)
        scores = returned(self.task, "evaluate", scores, dict)
        if self.run.task.metric not in scores:
            metric = f"the metric {self.run.task.metric}"
            raise ValueError(
                f"expected {metric} from {type(self.task).__name__}.evaluate, got "
                f"{listed([*scores]) or 'no score'}"
            )
        self.wrapped.train()
        return {name: float(score) for name, score in scores.items()}

    def validate(self) -> None:
        state, training = self.state, self.run.training
        self.stopwatch.lap("training")
        validation, about = self.evaluate("validation"), self.run.task
        score, sign = validation[about.metric], 1.0 if about.higher_is_better else -1.0
        if training.test_at == "best" and (
            state.best is None or sign * (score - state.best.metric) > 0.0
        ):
            test = self.evaluate("test")
            state.best = BestStep(step=state.step, metric=score, test=test)
        state.validation = validation
        self.stopwatch.lap("evaluation")
        self.log("validation", seconds=state.seconds["training"], **validation)
        if self.is_sampled:
            self.wrapped.eval()
            network = self.gather_network()
            if self.distribution.is_first and self.callbacks.sample is not None:
                self.log("sample", text=self.callbacks.sample(network))
            self.wrapped.train()
        if training.solve_threshold is None or state.steps_to_solve is not None:
            return
        if sign * (score - training.solve_threshold) >= 0.0:
            state.steps_to_solve = state.step

    def finish(self) -> Outcome:
        best = self.state.best
        scores = self.evaluate("test") if best is None else best.test
        self.wrapped.eval()
        network, attention = self.gather_network(), None
        if self.distribution.is_first:
            with torch.no_grad():
                found = self.task.attention_example(network)
            kinds = (AttentionExample, NoneType)
            attention = returned(self.task, "attention_example", found, kinds)
        self.stopwatch.lap("evaluation")
        self.log("test", seconds=self.state.seconds["training"], **scores)
        return self.outcome("done", network=network, scores=scores, attention=attention)

    def offer_network(self) -> None:
        """Call ``on_network`` if the callbacks ask for the network after this step."""
        if self.any_rank(self.state.step in self.callbacks.network_steps):
            network = self.gather_network()
            if self.distribution.is_first:
                self.callbacks.on_network(self.state.step, network)

    def gather_network(self) -> nn.Module:
        """Return the unsharded network on rank 0."""
        return self.distribution.gather_network(self.model, self.build)

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
        digest = self.distribution.digest(self.model, self.optimizer)
        self.stopwatch.lap("other")
        return Outcome(
            status=status,
            message=message,
            metrics=state.metrics(scores or {}),
            timing=state.timing(),
            attention=attention,
            state_sha256=digest,
            network=self.model if network is None else network,
        )
