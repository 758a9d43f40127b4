import dataclasses

import pytest

from qkvary.arch.networks import LanguageModelConfig
from qkvary.data.prepared_sets import PlannedSet
from qkvary.data.tokenizers import ByteTokenizer
from qkvary.storage.errors import UsageError
from qkvary.studies.pretraining import (
    VALIDATION_TOKENS,
    TrainingOptions,
    training_study,
)
from qkvary.tasks.config import LanguageTaskConfig
from qkvary.training.config import ExecutionConfig
from qkvary.training.presets import find_preset, preset_names

DATA = PlannedSet(
    name="mine",
    folder="/here",
    fingerprint="f" * 64,
    vocabulary=ByteTokenizer(has_separator=True).vocabulary,
)


@pytest.mark.parametrize(
    ("name", "variants", "rotates"),
    [
        ("lm-1m", (), True),
        ("lm-1m", ("Q-K=V@linear",), False),
        ("lm-1m", ("Q-K=V@linear", "QKV"), True),
        ("lm-1m", ("QKV@alibi",), False),
        ("lm-1m", ("QKV*4,Q-K=V@linear*1",), True),
        ("lm-1m-portable", ("Q-GQA-2@kv-norm",), True),
        ("lm-1m-portable", ("QKV@linear",), False),
    ],
)
def test_the_description_is_that_of_the_variants(
    name: str, variants: tuple[str, ...], *, rotates: bool
) -> None:
    description = training_study(find_preset(name), DATA, variants=variants).description
    assert ("rotate" in description) is rotates
    assert description.count("tokens a parameter") == 1


@pytest.mark.parametrize("name", preset_names())
def test_without_overrides_a_preset_is_unchanged(name: str) -> None:
    preset = find_preset(name)
    (cell,) = training_study(preset, DATA).cells()
    assert cell.run.training == preset.training
    assert cell.variant == preset.variant
    assert cell.kept_networks == (None,)
    network, task = cell.run.network, cell.run.task
    assert dataclasses.replace(network, vocabulary=preset.network.vocabulary) == preset.network
    assert isinstance(task, LanguageTaskConfig)
    assert (task.data, task.data_sha256, task.protocol) == ("/here", "f" * 64, preset.protocol)
    assert task.context == preset.context
    assert task.validation_tokens == (preset.validation_tokens or VALIDATION_TOKENS)


def test_validations_are_the_published_ones_unless_the_preset_is_cut_short() -> None:
    """Paper 1 scored 813 micro-batches of 6 rows, and 2,441 of 2, of 2,048 tokens.

    Paper 3 scored 200 batches of 12 windows of 1,024 tokens, and reports step 100,000 of 105,000.
    """
    for name, tokens, reported in (
        ("lm-300m", 9_990_144, 4_238),
        ("lm-1.2b", 9_998_336, 7_500),
        ("gpt2-124m", 2_457_600, 100_000),
        ("gpt2-118m-narrow", 2_457_600, 100_000),
    ):
        for steps, expected in (
            (None, tokens),
            (reported, tokens),
            (reported - 1, VALIDATION_TOKENS),
        ):
            (cell,) = training_study(
                find_preset(name), DATA, options=TrainingOptions(steps=steps)
            ).cells()
            assert isinstance(cell.run.task, LanguageTaskConfig)
            assert cell.run.task.validation_tokens == expected


def test_guards_may_be_chosen() -> None:
    preset = find_preset("lm-300m")
    (usual,) = training_study(preset, DATA).cells()
    options = TrainingOptions(on_nonfinite="skip", spike_guard=False)
    (cell,) = training_study(preset, DATA, options=options).cells()
    guards = usual.run.training.guards
    assert (guards.on_nonfinite, guards.spikes) == ("stop", True)
    expected = dataclasses.replace(guards, on_nonfinite="skip", spikes=False)
    assert cell.run.training.guards == expected


def test_the_table_fits_the_tokenizer() -> None:
    (cell,) = training_study(find_preset("lm-300m"), DATA).cells()
    assert cell.run.network.vocabulary == 320


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


def test_a_compiled_preset_may_be_left_uncompiled() -> None:
    preset = find_preset("gpt2-124m")
    assert preset.training.execution.compile
    (cell,) = training_study(preset, DATA, options=TrainingOptions(compile=False)).cells()
    assert not cell.run.training.execution.compile


def test_a_smaller_batch_lowers_the_rows_at_once() -> None:
    (cell,) = training_study(
        find_preset("lm-300m"), DATA, options=TrainingOptions(batch_size=4)
    ).cells()
    assert cell.run.training.execution.micro_batch_size == 4
    options = TrainingOptions(batch_size=4, micro_batch_size=5)
    with pytest.raises(UsageError, match="a micro-batch of at most the 4 rows of a step, got 5"):
        training_study(find_preset("lm-300m"), DATA, options=options)


def test_several_variants_are_a_study_with_the_first_as_its_baseline() -> None:
    study = training_study(
        find_preset("lm-300m"), DATA, variants=("q,k=v", "QKV", "Q-GQA-4"), seeds=(3, 5)
    )
    assert study.variants == ("Q-K=V", "QKV", "Q-GQA-4")
    assert study.baseline == "Q-K=V"
    assert [(cell.seed, cell.variant) for cell in study.cells()] == [
        (seed, label) for seed in (3, 5) for label in study.variants
    ]


def test_a_preset_about_a_variant_refuses_another() -> None:
    with pytest.raises(UsageError, match="for other variants use the preset gpt2-124m"):
        training_study(find_preset("gpt2-117m-identity"), DATA, variants=("MQA",))


def test_scores_of_a_set_without_a_test_split_are_not_called_test() -> None:
    for has_test in (True, False):
        study = training_study(find_preset("lm-10m"), dataclasses.replace(DATA, has_test=has_test))
        assert study.settings[0].task.has_test is has_test
        assert ("has no test split" in study.description) is not has_test
