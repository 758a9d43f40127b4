import dataclasses

import pytest

from qkvary.arch.networks import LanguageModelConfig
from qkvary.data.prepared_sets import PlannedSet
from qkvary.storage.errors import UsageError
from qkvary.studies.training_study import VALIDATION_TOKENS, TrainingOptions, training_study
from qkvary.tasks.config import LanguageTaskConfig
from qkvary.training.config import ExecutionConfig
from qkvary.training.presets import PRESETS, find_preset
from tests.data.small_sets import empty_set

DATA = PlannedSet.of(empty_set("mine", "train", "validation", "test"))


@pytest.mark.parametrize("name", [*PRESETS])
def test_without_overrides_a_preset_is_unchanged(name: str) -> None:
    preset = find_preset(name)
    (cell,) = training_study(preset, DATA).cells()
    assert cell.run.training == preset.training
    assert cell.variant == preset.variant
    assert cell.kept_networks == (None,)
    network, task = cell.run.network, cell.run.task
    assert network.vocabulary in (320, preset.network.vocabulary)
    assert dataclasses.replace(network, vocabulary=preset.network.vocabulary) == preset.network
    assert isinstance(task, LanguageTaskConfig)
    assert (task.data, task.data_sha256, task.protocol) == ("/here", "f" * 64, preset.protocol)
    assert task.context == preset.context
    assert task.validation_tokens == (preset.validation_tokens or VALIDATION_TOKENS)


def test_a_shorter_run_has_a_shorter_warm_up_and_more_frequent_validations() -> None:
    preset = find_preset("lm-300m")
    (cell,) = training_study(preset, DATA, options=TrainingOptions(steps=200)).cells()
    training = cell.run.training
    assert (training.steps, training.schedule.warmup_steps) == (200, 20)
    assert (training.evaluate_every, training.log_every) == (10, 2)
    (cell,) = training_study(preset, DATA, options=TrainingOptions(steps=10**6)).cells()
    assert cell.run.training == dataclasses.replace(preset.training, steps=10**6)


@pytest.mark.parametrize(
    ("preset", "sizes", "validated", "tested"),
    [
        # 80 steps of 16 x 256 tokens: 20 validations read half of them together, the test too.
        ("lm-1m", {"steps": 80}, 8_192, 163_840),
        ("lm-1m", {"steps": 1}, 256, 5_120),
        ("lm-1m", {"steps": 80, "context": 32}, 1_024, 20_480),
        ("lm-1m", {"steps": 80, "validation_tokens": 70_000, "test_tokens": 9}, 70_000, 9),
        # Longer runs score what they did before validations were scaled.
        ("lm-1m", {"steps": 640}, VALIDATION_TOKENS, None),
        ("lm-1m", {}, VALIDATION_TOKENS, None),
        (
            "lm-10m-portable",
            {"steps": 1_000, "batch_size": 16, "context": 256, "evaluate_every": 100},
            VALIDATION_TOKENS,
            None,
        ),
    ],
)
def test_a_short_run_scores_less_than_it_trains_on(
    preset: str, sizes: dict[str, int], validated: int, tested: int | None
) -> None:
    options = TrainingOptions(**sizes)  # type: ignore[arg-type]
    (cell,) = training_study(find_preset(preset), DATA, options=options).cells()
    task = cell.run.task
    assert isinstance(task, LanguageTaskConfig)
    assert (task.validation_tokens, task.test_tokens) == (validated, tested)


def test_overrides_reach_the_run() -> None:
    options = TrainingOptions(
        batch_size=24,
        context=128,
        learning_rate=0.5,
        evaluate_every=7,
        validation_tokens=99,
        test_tokens=77,
        protocol="packed",
        document_mask=True,
        device="cuda:1",
        micro_batch_size=3,
        precision="full",
        compile=True,
        recompute_blocks=True,
    )
    study = training_study(find_preset("lm-300m"), DATA, options=options)
    (cell,) = study.cells()
    assert "steps of 24 rows of 128 tokens" in study.description
    run = cell.run
    assert isinstance(run.task, LanguageTaskConfig)
    assert isinstance(run.network, LanguageModelConfig)
    training, task = run.training, run.task
    assert training.batch_size == 24
    assert training.execution == ExecutionConfig(
        micro_batch_size=3, precision="full", compile=True, recompute_blocks=True
    )
    assert (training.optimizer.learning_rate, training.evaluate_every) == (0.5, 7)
    assert (task.context, run.network.max_tokens) == (128, 128)
    assert (task.validation_tokens, task.test_tokens) == (99, 77)
    assert (task.protocol, task.document_mask, run.device) == ("packed", True, "cuda:1")


def test_a_smaller_batch_lowers_the_rows_at_once() -> None:
    (cell,) = training_study(
        find_preset("lm-300m"), DATA, options=TrainingOptions(batch_size=4)
    ).cells()
    assert cell.run.training.execution.micro_batch_size == 4
    options = TrainingOptions(batch_size=4, micro_batch_size=5)
    with pytest.raises(UsageError, match="a micro-batch of at most the 4 rows of a step, got 5"):
        training_study(find_preset("lm-300m"), DATA, options=options)


def test_scores_of_a_set_without_a_test_split_are_not_called_test() -> None:
    for has_test in (True, False):
        data = empty_set("mine", "train", "validation", *(["test"] if has_test else []))
        study = training_study(find_preset("lm-10m"), PlannedSet.of(data))
        assert study.settings[0].task.has_test is has_test
        assert ("has no test split" in study.description) is not has_test
