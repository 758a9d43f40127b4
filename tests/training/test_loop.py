import dataclasses
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.journal import parse_journal
from qkvary.storage.manifest import stored_steps
from qkvary.tasks.config import NumberTaskConfig
from qkvary.tasks.contract import SINGLE_PROCESS_CONTEXT, Batch, EvaluationContext, Split
from qkvary.training.config import ROUNDING_VERSION, ExecutionConfig, RunConfig
from qkvary.training.distribution import Distribution, step_seed
from qkvary.training.loop import Outcome, train
from qkvary.training.progress import Callbacks, Event
from tests.training.toy import LENGTH, ToyTask, toy_run

SCORES = ("loss", "accuracy")


class CountingTask(ToyTask):
    """A task that counts its losses, one for each micro-batch."""

    losses = 0

    def loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        self.losses += 1
        return super().loss(model, batch)


def log(directory: Path, *kinds: str) -> list[dict[str, Any]]:
    contents = parse_journal((directory / "metrics.jsonl").read_bytes(), where="log")
    assert contents.problems == ()
    return [event for event in contents.events if not kinds or event["event"] in kinds]


def after(steps: int) -> Callable[[], bool]:
    """A wish to stop after so many steps and batches of evaluations."""
    asked = itertools.count()
    return lambda: next(asked) >= steps


def without_time(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name != "seconds"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, list[dict[str, Any]]]:
    directory = tmp_path_factory.mktemp("whole")
    outcome = train(toy_run(), ToyTask(), directory)
    assert sorted(path.name for path in directory.iterdir()) == ["metrics.jsonl"]
    return outcome, log(directory)


def test_a_run_learns_and_says_how(whole: tuple[Outcome, list[dict[str, Any]]]) -> None:
    outcome, events = whole
    assert (outcome.status, outcome.message) == ("done", "")
    scores = [f"{split}_{score}" for split in ("validation", "test") for score in SCORES]
    assert list(outcome.metrics) == ["steps", "steps_to_solve", "final_train_loss", *scores]
    assert outcome.metrics["steps"] == 40
    assert outcome.metrics["steps_to_solve"] is None
    losses = [event["loss"] for event in events if event["event"] == "train"]
    assert losses[-1] < losses[0]
    assert outcome.metrics["final_train_loss"] == losses[-1]
    assert outcome.attention
    assert outcome.attention.targets == (4, 3, None, 1, 0)


def test_the_log_has_each_event_once(whole: tuple[Outcome, list[dict[str, Any]]]) -> None:
    _outcome, events = whole
    assert [e["step"] for e in events if e["event"] == "train"] == [7, 14, 21, 28, 35, 40]
    assert [e["step"] for e in events if e["event"] == "validation"] == [13, 26, 39, 40]
    assert [e["step"] for e in events if e["event"] == "test"] == [40]
    seconds = [event["seconds"] for event in events]
    assert seconds == sorted(seconds)


def test_the_logged_loss_is_the_mean_of_its_interval(tmp_path: Path) -> None:
    train(toy_run(log_every=1), ToyTask(), tmp_path)
    single = [event["loss"] for event in log(tmp_path, "train")]
    (tmp_path / "b").mkdir()
    train(toy_run(log_every=7), ToyTask(), tmp_path / "b")
    means = [event["loss"] for event in log(tmp_path / "b", "train")]
    for index, value in enumerate(means):
        interval = single[7 * index : 7 * index + 7]
        assert value == pytest.approx(sum(interval) / len(interval), rel=1e-12)


@pytest.mark.parametrize(
    ("step", "asked"),
    # Also in the validations after steps 13 and 40, in the test, and after it.
    [(0, 0), (1, 1), (7, 7), (13, 13), (13, 14), (40, 43), (40, 44), (0, 45)],
)
def test_stopping_at_any_step_changes_nothing(
    tmp_path: Path, step: int, asked: int, whole: tuple[Outcome, list[dict[str, Any]]]
) -> None:
    first = train(toy_run(), ToyTask(), tmp_path, stop=after(asked))
    assert first.status == ("stopped" if asked < 45 else "done")
    again = train(toy_run(), ToyTask(), tmp_path)
    assert again.state_sha256 == whole[0].state_sha256
    assert again.metrics == whole[0].metrics
    events = [without_time(e) for e in log(tmp_path) if e["event"] != "resumed"]
    assert events == [without_time(event) for event in whole[1]]
    resumed = [(event["step"], event["rounding"]) for event in log(tmp_path, "resumed")]
    assert resumed == ([(step, ROUNDING_VERSION)] if step else [])


@pytest.mark.parametrize("asked", [13, 14, 15])
def test_stopping_while_the_best_is_tested_changes_nothing(tmp_path: Path, asked: int) -> None:
    run = toy_run(test_at="best")
    (tmp_path / "whole").mkdir()
    whole = train(run, ToyTask(), tmp_path / "whole")
    for _ in range(2):
        assert train(run, ToyTask(), tmp_path, stop=after(asked)).status == "stopped"
        asked = min(asked, 1)
    again = train(run, ToyTask(), tmp_path)
    assert (again.metrics, again.state_sha256) == (whole.metrics, whole.state_sha256)
    events = [without_time(one) for one in log(tmp_path) if one["event"] != "resumed"]
    assert events == [without_time(one) for one in log(tmp_path / "whole")]


@pytest.mark.parametrize("step", [0, 13])
def test_a_step_is_given_up_between_two_micro_batches(tmp_path: Path, step: int) -> None:
    """A step may take minutes: the checkpoint is of the last full one, and nothing changes."""
    run = toy_run(execution=ExecutionConfig(micro_batch_size=2))
    (tmp_path / "whole").mkdir()
    whole = train(run, ToyTask(), tmp_path / "whole")
    parts = run.training.batch_size // 2
    assert parts > 2
    task, counted = CountingTask(), step * parts + 2
    stopped = train(run, task, tmp_path, stop=lambda: task.losses >= counted)
    assert stopped.status == "stopped"
    assert task.losses == counted
    assert stored_steps(tmp_path / "checkpoints") == ((step,) if step else ())
    again = train(run, ToyTask(), tmp_path)
    assert again.state_sha256 == whole.state_sha256
    assert again.metrics == whole.metrics


def test_the_global_generator_is_seeded_by_seed_and_step() -> None:
    seeds = {step_seed(seed, step) for seed in range(20) for step in range(50)}
    assert len(seeds) == 1000
    assert step_seed(3, 7) == step_seed(3, 7)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_another_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    train(toy_run(), ToyTask(), tmp_path, stop=after(3))
    with pytest.raises(UsageError, match="belongs to another run") as caught:
        train(toy_run(seed=4), ToyTask(), tmp_path)
    assert caught.value.exit_code == 2
    assert train(toy_run(), ToyTask(), tmp_path).status == "done"


def test_with_all_checkpoints_damaged_the_run_says_so(tmp_path: Path) -> None:
    train(toy_run(), ToyTask(), tmp_path, stop=after(5))
    (tmp_path / "checkpoints" / "step-000000000005" / "MANIFEST.json").unlink()
    with pytest.raises(DamagedError, match=r"every checkpoint in .* is damaged: .*MANIFEST\.json"):
        train(toy_run(), ToyTask(), tmp_path)
    assert stored_steps(tmp_path / "checkpoints") == (5,)
    assert [event["step"] for event in log(tmp_path)] == []


@pytest.mark.parametrize(("step", "poison"), [(0, "loss"), (17, "gradient"), (39, "loss")])
def test_what_is_not_finite_stops_the_run_before_the_update(
    tmp_path: Path, step: int, poison: str
) -> None:
    task = ToyTask(poison_step=step, poison=poison)
    outcome = train(toy_run(), task, tmp_path)
    assert outcome.status == "diverged"
    assert f"at step {step}" in outcome.message
    assert ("loss is nan" if poison == "loss" else "gradient norm") in outcome.message
    assert outcome.metrics["steps"] == step
    (event,) = log(tmp_path, "diverged")
    shown = event["loss"] if poison == "loss" else event["gradient_norm"]
    assert not math.isfinite(shown)
    assert "test" not in task.evaluations
    (tmp_path / "sound").mkdir()
    sound = train(toy_run(), ToyTask(), tmp_path / "sound", stop=after(step + step // 13))
    assert outcome.state_sha256 == sound.state_sha256, "the last good weights were kept"
    assert stored_steps(tmp_path / "checkpoints")[0] == step
    (tmp_path / "whole").mkdir()
    whole = train(toy_run(), ToyTask(), tmp_path / "whole")
    assert train(toy_run(), ToyTask(), tmp_path).state_sha256 == whole.state_sha256


def test_a_checkpoint_is_not_written_over_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first would be gone before the second has its name."""
    written: list[int] = []
    save = Distribution.save

    def watched(self: Distribution, directory: Path, **what: Any) -> None:
        written.append(what["step"])
        save(self, directory, **what)

    monkeypatch.setattr(Distribution, "save", watched)
    outcome = train(toy_run(), ToyTask(poison_step=5), tmp_path, checkpoint_seconds=0.0, keep=1)
    assert outcome.status == "diverged"
    assert written == [1, 2, 3, 4, 5]
    assert stored_steps(tmp_path / "checkpoints") == (5,)


def test_gradients_are_clipped_as_torch_does(tmp_path: Path) -> None:
    losses: dict[float | None, list[float]] = {}
    for clip in (None, 1e9, 0.05):
        (tmp_path / str(clip)).mkdir()
        train(toy_run(clip=clip, log_every=1), ToyTask(), tmp_path / str(clip))
        losses[clip] = [event["loss"] for event in log(tmp_path / str(clip), "train")]
    assert losses[None] == losses[1e9]
    assert losses[None] != losses[0.05]
    assert losses[0.05] == by_hand(toy_run(clip=0.05, log_every=1))


def by_hand(run: RunConfig) -> list[float]:
    """The same training, written with nothing but torch."""
    task, optimizer_config = ToyTask(), run.training.optimizer
    model = task.build(run.network, run.seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.1, weight_decay=optimizer_config.weight_decay, fused=True
    )
    losses: list[float] = []
    for step in range(run.training.steps):
        torch.manual_seed(step_seed(run.seed, step))
        loss = task.loss(model, task.batch(step, run.training.batch_size, run.seed))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optimizer_config.gradient_clip or 0.0)
        cosine = 0.5 * (1 + math.cos(math.pi * step / run.training.steps))
        rate = optimizer_config.learning_rate * cosine * min(1.0, step / 3)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_step_at_which_the_task_is_solved(tmp_path: Path) -> None:
    solving: dict[str, Any] = {"steps": 300, "solve_threshold": 0.99, "evaluate_every": 10}
    outcome = train(toy_run(**solving), ToyTask(), tmp_path)
    solved = [e["step"] for e in log(tmp_path, "validation") if e["accuracy"] >= 0.99]
    assert solved
    assert outcome.metrics["steps_to_solve"] == solved[0] < 300
    assert outcome.metrics["steps"] == 300
    (tmp_path / "b").mkdir()
    short = train(toy_run(**solving, stop_when_solved=True), ToyTask(), tmp_path / "b")
    assert short.metrics["steps"] == short.metrics["steps_to_solve"] == solved[0]
    assert short.status == "done"
    assert short.metrics["final_train_loss"] == pytest.approx(
        [e["loss"] for e in log(tmp_path / "b", "train")][-1]
    )


def test_less_of_a_loss_is_better(tmp_path: Path) -> None:
    task = NumberTaskConfig(context=LENGTH)
    run = dataclasses.replace(toy_run(test_at="best", solve_threshold=0.2), task=task)
    metrics = train(run, ScriptedTask((0.4, 0.2, 0.2, 0.3)), tmp_path).metrics
    assert (metrics["best_step"], metrics["steps_to_solve"]) == (26, 26)


def test_the_number_of_threads_is_put_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    seen: list[int] = []
    task = ToyTask()
    batch = task.batch
    task.batch = lambda *arguments: (seen.append(torch.get_num_threads()), batch(*arguments))[1]  # type: ignore[method-assign]
    train(toy_run(steps=2, execution=ExecutionConfig(threads=2)), task, tmp_path)
    assert set(seen) == {2}
    assert torch.get_num_threads() == before


def test_progress_is_told_within_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkvary.training.loop.PROGRESS_SECONDS", 0.0)
    events: list[Event] = []
    run = toy_run(steps=2, execution=ExecutionConfig(micro_batch_size=1))
    train(run, ToyTask(), tmp_path, callbacks=Callbacks(on_event=events.append))
    rows = run.training.batch_size
    parts = [number / rows for number in range(1, rows)]
    expected = [*((step + part) for step in (0, 1) for part in (*parts, 1.0))]
    assert [event.step + event.part for event in events] == expected


class ScriptedTask(ToyTask):
    """Each validation finds the next of given scores; a test finds how many it has seen."""

    def __init__(self, scores: tuple[float, ...], seen: int = 0) -> None:
        super().__init__()
        self.scores, self.seen = scores, seen

    def evaluate(
        self,
        model: nn.Module,
        split: Split,
        context: EvaluationContext = SINGLE_PROCESS_CONTEXT,
        /,
    ) -> dict[str, float]:
        scores = super().evaluate(model, split, context)
        if split == "test":
            return {"loss": scores["loss"], "accuracy": float(self.seen)}
        self.seen += 1
        return dict.fromkeys(SCORES, self.scores[self.seen - 1])


@pytest.mark.parametrize(
    ("accuracies", "step", "number"),
    [((0.2, 0.5, 0.5, 0.4), 26, 2), ((0.9, 0.1, 0.2, 0.3), 13, 1), ((0.1, 0.2, 0.3, 0.4), 40, 4)],
)
def test_first_of_the_best_is_tested(
    tmp_path: Path, accuracies: tuple[float, ...], step: int, number: int
) -> None:
    task = ScriptedTask(accuracies)
    outcome = train(toy_run(test_at="best"), task, tmp_path)
    assert outcome.metrics["best_step"] == step
    assert outcome.metrics["test_accuracy"] == number
    assert outcome.metrics["validation_accuracy"] == accuracies[-1]
    improvements = sum(one > max((0.0, *accuracies[:n])) for n, one in enumerate(accuracies))
    assert task.evaluations.count("test") == improvements


def test_a_stopped_run_remembers_its_best(tmp_path: Path) -> None:
    accuracies = (0.2, 0.5, 0.1, 0.4)
    config = toy_run(test_at="best")
    first = train(config, ScriptedTask(accuracies), tmp_path, stop=after(30))
    assert first.status == "stopped"
    again = train(config, ScriptedTask(accuracies, seen=2), tmp_path)
    assert (again.metrics["best_step"], again.metrics["test_accuracy"]) == (26, 2)
