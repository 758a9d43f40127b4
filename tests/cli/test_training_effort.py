"""What is said of a training before its first step."""

import dataclasses

import pytest

from qkvary.api.training_plan import estimate_seconds
from qkvary.arch.models import as_model
from qkvary.costs.macs import forward_macs
from qkvary.data.prepared_sets import PlannedSet
from qkvary.studies import timing
from qkvary.studies.training_study import describe_effort
from qkvary.tasks.config import LanguageTaskConfig
from qkvary.training.config import RunConfig
from qkvary.training.presets import find_preset


def preset_run(steps: int = 3_060, rows: int = 64, device: str = "cpu") -> RunConfig:
    preset = find_preset("lm-10m")
    training = dataclasses.replace(preset.training, steps=steps, batch_size=rows)
    task = LanguageTaskConfig(data="", data_sha256="0", context=preset.context)
    return RunConfig(task=task, network=preset.network, training=training, seed=0, device=device)


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


UNKNOWN = PlannedSet(name="mine", vocabulary=257)
"""A set that is not prepared."""


def test_time_grows_with_the_macs_of_all_steps_and_evaluations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timing, "_time_layers", lambda *_: 1e-9)
    run = preset_run(steps=5, rows=3)
    run = dataclasses.replace(
        run, task=dataclasses.replace(run.task, validation_tokens=700, test_tokens=100)
    )
    run = dataclasses.replace(run, training=dataclasses.replace(run.training, evaluate_every=2))
    per_token = forward_macs(as_model(run.network), tokens=1_024, pairs="square").total / 1_024
    # Three validations; the test reads its tokens three times; a forward pass is a third of a step.
    scored = 3 * 700 + 3 * 100
    expected = 1e-9 * per_token * (5 * 3 * 1_024 + scored / 3)
    assert estimate_seconds(run, UNKNOWN) == pytest.approx(expected)
    assert estimate_seconds(preset_run(device="cuda"), UNKNOWN) is None
