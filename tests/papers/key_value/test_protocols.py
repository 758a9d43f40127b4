"""The studies that ship with qkvary have the sizes that the papers, or their code, have."""

from itertools import product

import pytest

from qkvary.arch.networks import LanguageModelConfig
from qkvary.studies.catalog import study_names
from qkvary.studies.study import Setting, Study
from qkvary.tasks.config import CharacterTaskConfig
from tests.papers.definitions import module_of


def study(name: str) -> Study:
    return module_of(name).STUDY


def test_files_of_definitions_hold_a_study_and_nothing_else_public() -> None:
    for module in map(module_of, study_names()):
        own = [
            key
            for key, value in vars(module).items()
            if not key.startswith("_") and getattr(value, "__module__", "") == module.__name__
        ]
        assert own == [], module.__name__


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
