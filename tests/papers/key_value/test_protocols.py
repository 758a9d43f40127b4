"""The studies that ship with qkvary have the sizes that the papers, or their code, have."""

from itertools import product

import pytest

from qkvary.arch.networks import EncoderConfig, LanguageModelConfig
from qkvary.papers.catalog import published_names
from qkvary.studies.catalog import load_study, study_names
from qkvary.studies.study import Setting, Study
from qkvary.tasks.config import CharacterTaskConfig, NumberTaskConfig, SequenceTaskConfig
from tests.papers.definitions import module_of

NAMES = study_names()


def study(name: str) -> Study:
    return module_of(name).STUDY


@pytest.mark.parametrize("name", NAMES)
def test_study_is_named_after_its_file_and_every_run_is_different(name: str) -> None:
    found = study(name)
    assert found.name == name
    shared = {setting.name for setting in found.settings if setting.table is not None}
    keys = [cell.run_key for cell in found.cells() if cell.setting not in shared]
    assert len(set(keys)) == len(keys)
    assert found.question.endswith("?")
    assert {table.name for table in found.published} <= set(published_names())


@pytest.mark.parametrize("name", NAMES)
def test_files_of_definitions_hold_a_study_and_nothing_else_public(name: str) -> None:
    module = module_of(name)
    own = [
        key
        for key, value in vars(module).items()
        if not key.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]
    assert own == []


def sizes(setting: Setting) -> tuple[int, int, int, int]:
    network, task = setting.network, setting.task
    length = task.context if isinstance(task, CharacterTaskConfig) else task.length
    return network.d_model, network.num_layers, network.layers[0].num_heads, length


@pytest.mark.parametrize(
    ("name", "widths", "lengths", "count"),
    [
        ("synthetic-paper", (32, 64, 256), (16, 64, 128), 36),
        ("synthetic-published", (64, 256), (64, 128), 16),
    ],
)
def test_synthetic_grids(
    name: str, widths: tuple[int, ...], lengths: tuple[int, ...], count: int
) -> None:
    found = study(name)
    grid = set(product(widths, (2, 4), (2, 4), lengths))
    assert len(grid) == count
    for task in ("reverse", "sort", "sub", "swap", "copy"):
        own = [setting for setting in found.settings if setting.task.name == task]
        assert {sizes(setting) for setting in own} == grid
        assert len(own) == count
    assert len(found.seeds) == 3
    assert found.variants == ("QKV", "Q=K-V", "(Q=K-V)+", "Q-K=V", "Q=K=V", "(Q=K=V)+")


def test_synthetic_settings_are_the_published_ones() -> None:
    for setting in study("synthetic-paper").settings:
        check_synthetic(setting)


def check_synthetic(setting: Setting) -> None:
    network, training, task = setting.network, setting.training, setting.task
    assert isinstance(network, EncoderConfig)
    assert isinstance(task, SequenceTaskConfig)
    examples = (task.train_examples, task.validation_examples, task.test_examples)
    assert examples == (50_000, 1_000, 10_000)
    attention, block = network.layers[0], network.block
    assert (training.steps, training.batch_size) == (2 * (50_000 // 128), 128)
    optimizer = training.optimizer
    assert (optimizer.name, optimizer.learning_rate, optimizer.weight_decay) == ("adam", 1e-3, 0.0)
    assert (optimizer.gradient_clip, optimizer.betas) == (5.0, (0.9, 0.999))
    assert (training.schedule.name, training.schedule.warmup_steps) == ("cosine_warmup", 5)
    assert (block.d_ff, block.activation) == (2 * network.d_model, "relu")
    assert (block.norm_placement, block.norm) == ("post", "layernorm")
    assert (block.dropout, block.inner_dropout, attention.dropout) == (0.1, 0.1, 0.0)
    assert (network.input_dropout, network.positions) == (0.0, "sinusoidal")
    assert (attention.scale.by, attention.position.plus_features) == ("head", 10)
    assert not attention.position.plus_per_head
    assert (attention.init.scheme, attention.init.matched) == ("xavier", False)
    assert (network.init.scheme, attention.bias, attention.out_bias) == ("torch", True, True)


@pytest.mark.parametrize("name", ["chars-paper", "chars-published"])
def test_character_networks_are_the_published_ones(name: str) -> None:
    for setting in study(name).settings:
        network = setting.network
        assert isinstance(network, LanguageModelConfig)
        attention, block = network.layers[0], network.block
        assert (block.d_ff, block.activation) == (4 * network.d_model, "relu")
        assert (block.norm_placement, block.dropout, block.inner_dropout) == ("pre", 0.2, 0.0)
        assert (attention.dropout, attention.scale.by) == (0.2, "width")
        assert (attention.bias, attention.out_bias) == (False, True)
        assert (network.tied_head, network.head_bias, network.positions) == (False, True, "learned")
        assert (network.embedding_dropout, network.vocabulary) == (0.0, 65)
        position = attention.position
        assert (position.plus_features, position.plus_per_head) == (20, True)
        assert attention.init == network.init
        assert network.init.scheme == "torch"
        assert setting.training.schedule.name == "constant"
        assert setting.training.optimizer.gradient_clip is None


def test_characters_by_the_text() -> None:
    found = study("chars-paper")
    settings = [sizes(setting) for setting in found.settings]
    assert len(settings) == 4
    assert {width for width, *_ in settings} == {64, 192}
    assert {layers for _, layers, *_ in settings} == {1, 2, 3, 6}
    assert {heads for *_, heads, _ in settings} == {1, 4}
    assert {context for *_, context in settings} == {8, 32, 64}
    for setting in found.settings:
        assert (setting.training.steps, setting.training.optimizer.name) == (1_000, "adam")
        assert setting.training.optimizer.learning_rate == 5e-4
        assert isinstance(setting.task, CharacterTaskConfig)
        assert setting.task.evaluation == "exact"


def test_characters_by_the_code() -> None:
    found = study("chars-published")
    rows = [
        (
            setting.training.batch_size,
            *sizes(setting),
            setting.training.optimizer.learning_rate,
        )
        for setting in found.settings
    ]
    assert rows == [
        (64, 192, 6, 3, 64, 5e-4),
        (64, 192, 6, 3, 8, 5e-4),
        (64, 64, 1, 1, 32, 5e-3),
        (128, 64, 2, 2, 128, 5e-3),
    ]
    for setting in found.settings:
        training, task = setting.training, setting.task
        assert isinstance(task, CharacterTaskConfig)
        assert (training.steps, training.evaluate_every) == (10_000, 200)
        assert (training.optimizer.name, training.optimizer.weight_decay) == ("adamw", 0.01)
        assert (task.evaluation, task.evaluation_batches) == ("sampled", 200)
        assert task.evaluation_batch_size == training.batch_size
    assert found.seeds[0] == 1337


def test_number_settings_are_the_published_ones() -> None:
    module = module_of("numbers-paper")
    for protocol, found in module.PROTOCOLS.items():
        assert len(found.cells()) == 8 * 3 * 5
        grid = {
            (setting.training.optimizer.learning_rate, setting.task.sequence_length)
            for setting in found.settings
        }
        assert grid == set(product((1e-3, 1e-4), (16, 32, 64, 128)))
        for setting in found.settings:
            check_numbers(setting)
            assert setting.task == NumberTaskConfig(
                context=setting.task.sequence_length, protocol=protocol
            )


def check_numbers(setting: Setting) -> None:
    network, training = setting.network, setting.training
    assert isinstance(network, LanguageModelConfig)
    attention, block, optimizer = network.layers[0], network.block, training.optimizer
    assert (network.d_model, network.num_layers, attention.num_heads) == (64, 4, 8)
    assert (block.d_ff, block.activation, block.norm_placement) == (256, "relu", "stream")
    assert (network.embedding_dropout, block.dropout, block.feed_forward_dropout) == (0.1, 0.1, 0.2)
    assert (attention.dropout, block.inner_dropout) == (0.0, 0.0)
    assert (attention.bias, attention.out_bias, block.bias) == (False, False, True)
    assert (attention.scale.by, attention.position.plus_features) == ("head", 10)
    assert not attention.position.plus_per_head
    assert (network.positions, network.scale_embedding) == ("sinusoidal-halves", True)
    assert (network.tied_head, network.head_bias, network.vocabulary) == (True, True, 30)
    assert attention.init.scheme == network.init.scheme == "xavier-matrices"
    assert network.init.embedding_std == 64**-0.5
    assert training.steps == 15 * {16: 49, 32: 24, 64: 12, 128: 6}[setting.task.sequence_length]
    assert (training.batch_size, training.evaluate_every * 15) == (64, training.steps)
    assert (optimizer.name, optimizer.weight_decay, optimizer.decay) == ("adamw", 0.01, "matrices")
    assert (optimizer.betas, optimizer.eps, optimizer.gradient_clip) == ((0.95, 0.99), 1e-5, None)
    assert training.schedule.name == "one_cycle"


def test_numbers_by_the_code_are_the_runs_of_the_text() -> None:
    for protocol in ("as-published", "clean"):
        text, code = (load_study(name, protocol) for name in ("numbers-paper", "numbers-published"))
        assert [cell.run for cell in text.cells()] == [cell.run for cell in code.cells()]
        assert [table.name for table in code.published] == ["key-value-notebook-numbers"]
        assert code.name == text.name.replace("paper", "published")


def test_the_quick_number_study_is_a_part_of_the_other() -> None:
    for protocol in ("as-published", "clean"):
        whole, quick = (load_study(name, protocol) for name in ("numbers-paper", "numbers-quick"))
        keys = {cell.run_key for cell in whole.cells()}
        assert {cell.run_key in keys for cell in quick.cells() if cell.variant != "Q-K=V"} == {True}
