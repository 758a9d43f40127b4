"""What is said of a training before its first step."""

import dataclasses
import io
import math

import pytest
from rich.console import Console

from qkvary.arch.models import as_model
from qkvary.cli._training_effort import describe_effort, estimate_seconds
from qkvary.cli._training_progress import TrainingDisplay
from qkvary.costs.macs import forward_macs
from qkvary.studies.running import timing
from qkvary.studies.running.messages import WorkerMessage
from qkvary.training.config import RunConfig
from qkvary.training.presets import find_preset


def preset_run(steps: int = 3_060, rows: int = 64, device: str = "cpu") -> RunConfig:
    preset = find_preset("lm-10m")
    training = dataclasses.replace(preset.training, steps=steps, batch_size=rows)
    task = preset.task(data="", data_sha256="0")
    return RunConfig(task=task, network=preset.network, training=training, seed=0, device=device)


def test_passes_and_hours_are_said() -> None:
    assert describe_effort(preset_run(), 65_536 * 1_530, [7_200.0]) == (
        "3,060 steps of 65,536 tokens; 2.00 passes over the 100,270,080 training tokens; about "
        "2 h 00 min on this machine, validations not counted"
    )
    assert describe_effort(preset_run(7, 1), None, [None]) == "7 steps of 1,024 tokens"
    unprepared = describe_effort(preset_run(), None, [None], 80_888)
    assert unprepared.startswith(
        "3,060 steps of 65,536 tokens; at least 2,479 passes over the 80,888"
    )
    assert unprepared.endswith(
        "bytes of text. More than 16 passes teach little: try --batch-size 4 --steps 315"
    )
    two = describe_effort(preset_run(), None, [60.0, 30.0])
    assert two.endswith("about 90 s on this machine for all 2 runs, validations not counted")


@pytest.mark.parametrize(
    ("training_tokens", "says"),
    [
        (65_536 * 100, "30.6 passes over the 6,553,600 training tokens. {} --steps 1600"),
        (442_911, "453 passes over the 442,911 training tokens. {} --batch-size 32 --steps 216"),
        (500, "{} --batch-size 1 --steps 7"),
    ],
)
def test_shorter_trainings_are_suggested_for_short_texts(training_tokens: int, says: str) -> None:
    text = describe_effort(preset_run(), training_tokens, [None])
    assert text.endswith(says.format("More than 16 passes teach little: try"))


def test_time_grows_with_the_macs_of_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr(timing, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(timing, "MOST_TIMED_MACS", 1)
    run = preset_run(steps=5, rows=3)
    found = estimate_seconds(run)
    # One second for the 64 tokens that are timed.
    timed = forward_macs(as_model(run.network), tokens=64, pairs="square").total
    assert found == pytest.approx(
        5 * 3 * forward_macs(as_model(run.network), tokens=1_024, pairs="square").total / timed
    )
    assert estimate_seconds(preset_run(device="cuda")) is None


def test_progress_within_a_step_is_shown() -> None:
    screen = Console(file=io.StringIO(), width=100)
    display = TrainingDisplay(screen, ())
    for part, loss in ((0.125, math.nan), (0.0, 2.5)):
        message = WorkerMessage(kind="progress", cell=0, steps=3_060, part=part, loss=loss)
        display._line._shown = -math.inf  # pyright: ignore[reportPrivateUsage]
        display.handle(message)
    assert screen.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "step 1 of 3,060, 12% of it",
        "step 0 of 3,060, loss 2.5000",
    ]
