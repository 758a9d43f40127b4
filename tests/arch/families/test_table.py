"""The table of families: every published file is read, and whatever is not says why."""

import random
from dataclasses import replace
from typing import Any

import pytest

from qkvary.arch.attention import ScaleConfig
from qkvary.arch.blocks import Layer
from qkvary.arch.families import table
from qkvary.arch.families.language_models import BLOCKS, read_gpt2, read_language_model
from qkvary.arch.families.table import FAMILIES, MULTIMODAL, find_text, read_model
from qkvary.arch.models import Model, as_model, map_layers
from qkvary.costs.parameters import model_parameters
from tests.arch.families.config_files import FOLDER, OF_EACH_FAMILY, WHOLE_FILES, load, read
from tests.fuzz.mutations import change_values

NOTE = "only the language model is counted, not a vision or audio tower"


def test_every_file_that_declares_families_is_in_the_table() -> None:
    sources = (FOLDER.parents[3] / "src" / "qkvary" / "arch" / "families").glob("*.py")
    declaring = {path.stem for path in sources if "\nREADERS" in path.read_text("utf-8")}
    files = {name: file for name, file in vars(table).items() if hasattr(file, "READERS")}
    assert declaring == set(files)
    # A family is declared once.
    assert sum(len(file.READERS) for file in files.values()) == len(FAMILIES)
    assert set(FAMILIES) >= MULTIMODAL


@pytest.mark.parametrize(
    ("model_type", "got"),
    [
        ("gemma3n", "got 'gemma3n'; reading it"),
        (None, "got 'None'; reading it"),
        ("x" * 1000, f"got '{'x' * 60}'; reading it"),
    ],
)
def test_an_unknown_family_is_refused_without_another_reading(model_type: object, got: str) -> None:
    """A reading as the nearest family, or as Llama, would give wrong numbers without a word."""
    with pytest.raises(ValueError, match="known families such as llama") as caught:
        read_model({**load("llama-3.1-8b"), "model_type": model_type}, "mine")
    said = str(caught.value)
    assert f"{got} as a known family could" in said
    assert f"one of {len(FAMILIES)} known" in said
    assert "did you mean" not in said


def test_the_text_of_an_unknown_multimodal_model_is_read() -> None:
    model = read_model({"model_type": "seer", "text_config": load("llama-3.1-8b")}, "seer")
    assert model.layers == read("llama-3.1-8b").layers
    assert model.notes == (NOTE,)
    with pytest.raises(ValueError, match="got 'seer'; reading it as a known"):
        read_model({"model_type": "seer", "text_config": {"hidden_size": 24}}, "seer")
    with pytest.raises(ValueError, match="expected a nested configuration for text_config"):
        read_model({"model_type": "seer", "text_config": "llama"}, "seer")


@pytest.mark.parametrize("name", [*WHOLE_FILES, *OF_EACH_FAMILY.values()])
def test_a_changed_file_is_read_or_refused_in_one_sentence(name: str) -> None:
    chance = random.Random(name)
    refused = 0
    for _ in range(100):
        try:
            model = read_model(change_values(load(name), chance), name)
        except ValueError as error:
            refused += 1
            message = str(error)
            assert message.startswith("expected ")
            assert "\n" not in message
            assert len(message) < 1000
        else:
            assert isinstance(model, Model)
            assert model_parameters(model).total > 0
    assert 0 < refused < 100


SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "head_dim": 16,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "vocab_size": 101,
    "max_position_embeddings": 512,
    "sliding_window": 32,
}


def without_scales(layer: Layer) -> Layer:
    """Costs do not depend on the scale of the scores or of the rotation."""
    attention: Any = layer.attention
    position = replace(attention.config.position, scaling=None)
    config = replace(attention.config, scale=ScaleConfig(), position=position)
    return replace(layer, attention=replace(attention, config=config))


@pytest.mark.parametrize("family", ["gpt2", *BLOCKS])
def test_a_network_is_described_as_its_configuration_is(family: str) -> None:
    """What costs for a checkpoint costs for the network that is built from it."""
    heads = {} if family == "gpt_neox" else {"num_key_value_heads": 2}
    files = [] if family == "gpt2" else [{**SIZES, **heads, "model_type": family}]
    published = OF_EACH_FAMILY.get(family)
    for config in files if published is None else [*files, load(published)]:
        named, fields = find_text(config)
        network = read_gpt2(fields) if named == "gpt2" else read_language_model(named, fields)
        built = as_model(network, "model")
        layers = tuple(map_layers(built.layers, without_scales))
        expected = replace(read_model(config, "model"), notes=())
        assert replace(built, layers=layers) == expected
