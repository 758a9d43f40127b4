"""Trainings on a device that is not the CPU: as on the CPU, with two waits for a step.

The device is ``tests.fake_device``. At every step the host reads the loss and the norm of the
gradient, because guards decide whether the step is taken.
"""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from qkvary.inference.decoding import generate
from qkvary.tasks.catalog import load_task
from qkvary.tasks.contract import ShowsSamples
from qkvary.training import loop
from qkvary.training.config import (
    ExecutionConfig,
    GuardConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    TemperatureSchedule,
    TrainingConfig,
)
from qkvary.training.loop import Outcome, train
from qkvary.training.progress import Callbacks
from tests.fake_device import DEVICE, DeviceTensor, FakeDevice
from tests.tasks.tiny_networks import task_names, tiny_network, tiny_task

STEPS, MICRO_BATCHES = 3, 2
LOSS, NORM = "training/distribution.py Gradients.accumulate", "training/loop.py _Trainer.step"

SIMILAR = ("characters", "numbers", "reverse", "sort", "sub", "swap", "translation")

PER_MICRO_BATCH = {
    # Only the logits of the predicted characters are computed.
    "masked": {"tasks/masked.py MaskedTask.scored": 1},
    # Only the logits of queries are computed.
    "recall": {"tasks/recall.py RecallTask.scored": 1},
    # Whether there is padding: without it no mask is needed.
    "texts": {"tasks/texts.py TextTask.logits": 1},
    # Only the logits of words are computed.
    "translation": {"nn/fused_loss.py smoothed_loss_sum": 1},
}
"""What a task waits for besides."""


@pytest.fixture(autouse=True)
def known_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line's check of devices knows those of machines."""
    monkeypatch.setattr(loop, "require_device", lambda _: None)


def make_run(name: str, device: str, **training: Any) -> RunConfig:
    given: dict[str, Any] = {
        "steps": STEPS,
        "batch_size": 6,
        "evaluate_every": STEPS,
        "log_every": 2,
        "optimizer": OptimizerConfig(name="adamw", learning_rate=0.01, gradient_clip=0.1),
        "schedule": ScheduleConfig(name="cosine_warmup", warmup_steps=2),
        "execution": ExecutionConfig(micro_batch_size=6 // MICRO_BATCHES),
        **training,
    }
    return RunConfig(
        task=tiny_task(name),
        network=tiny_network(name),
        training=TrainingConfig(**given),
        device=device,
        # Autocast leaves float64 alone.
        dtype="float32" if given["execution"].precision == "bf16" else "float64",
        seed=3,
    )


def train_on(
    device: str,
    name: str,
    folder: Path,
    *,
    stop: Callable[[], bool] = lambda: False,
    every: float = 1e9,
    **training: Any,
) -> Outcome:
    folder.mkdir(exist_ok=True)
    return train(
        make_run(name, device, **training),
        load_task(tiny_task(name)),
        folder,
        stop=stop,
        checkpoint_seconds=every,
        callbacks=Callbacks(generate=generate),
    )


def compare(name: str, folder: Path, *, near: float = 1e-9, **training: Any) -> Counter[str]:
    """Train on both; return the waits of all steps but the last, after which comes scoring."""
    expected = train_on("cpu", name, folder / "cpu", **training)
    seen: list[Counter[str]] = []
    with FakeDevice() as device:

        def look() -> bool:
            seen.append(device.waits + device.uploads)
            return False

        found = train_on(DEVICE, name, folder / "there", stop=look, **training)
    assert all(isinstance(one, DeviceTensor) for one in found.network.parameters())
    assert found.status == expected.status == "done"
    for metric, value in expected.metrics.items():
        if value is not None:
            assert found.metrics[metric] == pytest.approx(value, rel=near, abs=near, nan_ok=True), (
                metric
            )
    if expected.attention is not None:
        assert found.attention is not None
        assert found.attention.maps == pytest.approx(expected.attention.maps, abs=max(near, 1e-6))
    # The batches of evaluations, which come after the last step, are asked for too.
    run = make_run(name, DEVICE, **training).training
    calls = run.batch_size // (run.execution.micro_batch_size or run.batch_size)
    waits = seen[calls * (STEPS - 1)] - seen[0]
    # A table that is kept.
    waits.pop("nn/layout.py _frequencies", None)
    return waits


@pytest.mark.parametrize(
    "name",
    [
        # Others of their classes are enough by default; an encoder-decoder takes its steps and
        # generates in test_fake_device.
        pytest.param(name, marks=pytest.mark.slow if name in SIMILAR else ())
        for name in task_names()
    ],
)
def test_every_task(name: str, tmp_path: Path) -> None:
    """Loss, validation, test and the example of attention; two waits for a step."""
    more = PER_MICRO_BATCH.get(name, {})
    assert compare(name, tmp_path) == {
        LOSS: STEPS - 1,
        NORM: STEPS - 1,
        **{place: count * (STEPS - 1) * MICRO_BATCHES for place, count in more.items()},
    }


WAYS: dict[str, dict[str, Any]] = {
    "bfloat16": {"execution": ExecutionConfig(precision="bf16")},
    "recomputed, annealed, one cycle": {
        "execution": ExecutionConfig(recompute_blocks=True),
        "temperature": TemperatureSchedule(start=2.0),
        "schedule": ScheduleConfig(name="one_cycle"),
    },
    "skipped, cosine, Adam": {
        "guards": GuardConfig(on_nonfinite="skip", skip_gradient_norm=1e-9),
        "schedule": ScheduleConfig(name="cosine", floor=0.1),
        "optimizer": OptimizerConfig(name="adam", learning_rate=0.01, decay="matrices"),
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_train(way: str, tmp_path: Path) -> None:
    # The CPU rounds to bfloat16 in other places.
    near = 0.05 if way == "bfloat16" else 1e-9
    waits = compare("copy", tmp_path, near=near, **WAYS[way])
    assert waits == {LOSS: STEPS - 1, NORM: STEPS - 1}


def test_bfloat16_is_that_of_the_device(tmp_path: Path) -> None:
    losses: list[Any] = []
    for precision in ("full", "bf16"):
        execution = ExecutionConfig(precision=precision)
        with FakeDevice():
            found = train_on(DEVICE, "copy", tmp_path / precision, execution=execution)
        losses.append(found.metrics["test_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert losses[0] != pytest.approx(losses[1], rel=1e-5)


def test_a_stopped_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    with FakeDevice():
        whole = train_on(DEVICE, "language", tmp_path / "whole", every=0.0)
        asked = itertools.count()
        stopped = train_on(
            DEVICE, "language", tmp_path / "parts", stop=lambda: next(asked) >= MICRO_BATCHES
        )
        assert stopped.status == "stopped"
        resumed = train_on(DEVICE, "language", tmp_path / "parts")
    assert all(isinstance(one, DeviceTensor) for one in resumed.network.parameters())
    assert resumed.state_sha256 == whole.state_sha256
    # A checkpoint of the device goes on anywhere.
    asked = itertools.count()
    with FakeDevice():
        train_on(DEVICE, "language", tmp_path / "moved", stop=lambda: next(asked) >= 2)
    run = make_run("language", DEVICE)
    here = replace(run, device="cpu")
    moved = train(here, load_task(tiny_task("language")), tmp_path / "moved", stored=run)
    assert {one.device.type for one in moved.network.parameters()} == {"cpu"}
    assert moved.metrics["test_loss"] == pytest.approx(whole.metrics["test_loss"], rel=1e-9)


def test_a_step_that_diverges_is_seen(tmp_path: Path) -> None:
    optimizer = OptimizerConfig(name="adam", learning_rate=1e300)
    with FakeDevice():
        found = train_on(DEVICE, "language", tmp_path, optimizer=optimizer)
    assert found.status == "diverged"


@pytest.mark.parametrize("name", ["images", "texts", "translation"])
def test_samples(name: str) -> None:
    task = load_task(tiny_task(name))
    assert isinstance(task, ShowsSamples)
    network = task.build(tiny_network(name), 5).eval()
    with torch.no_grad():
        expected = [one.answer for one in task.samples(network, generate)]
        with FakeDevice():
            found = [one.answer for one in task.samples(network.to(DEVICE), generate)]
    assert found == expected
