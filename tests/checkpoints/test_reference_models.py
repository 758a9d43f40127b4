"""What loads under a name costs under it, from the header alone, however large the file is."""

import math
from pathlib import Path

import pytest

from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.gguf.headers import read_file
from qkvary.checkpoints.huggingface.folders import export_folder
from qkvary.checkpoints.models import LoadedModel
from qkvary.checkpoints.reference_models import find_reference
from qkvary.costs.parameters import model_parameters
from tests.checkpoints.gguf.test_networks import PORTABLE, build_portable, write
from tests.fuzz.formats import FORMATS

KINDS = (
    "gguf pieces",
    "gguf pairs",
    "llama2.c",
    "llama config",
    "gpt2 config",
    "character config",
    "own config",
)


@pytest.mark.parametrize("name", KINDS)
def test_a_checkpoint_costs_what_is_loaded(name: str, tmp_path: Path) -> None:
    file = FORMATS[name].make(tmp_path)
    network = load_checkpoint(file.parent).network
    is_file = file.suffix in (".gguf", ".bin")
    for path in (file.parent, file) if is_file else (file.parent,):
        found = find_reference(path)
        weights = sum(one.numel() for one in network.parameters())
        assert model_parameters(found).total == weights
        assert len(found.layers) == network.config.num_layers
        assert found.max_tokens == network.config.max_tokens


@pytest.mark.parametrize("label", [PORTABLE[1], PORTABLE[6]])
def test_deepseek_costs_the_same_in_both_formats(label: str, tmp_path: Path) -> None:
    network = build_portable(label, tied_head=False)
    export_folder(LoadedModel(network, None), tmp_path / "model", to="deepseek")
    folder, file = find_reference(tmp_path / "model"), find_reference(write(network, tmp_path))
    assert model_parameters(file) == model_parameters(folder)
    header = read_file(tmp_path / "a.gguf")
    assert model_parameters(file).total == sum(math.prod(one) for one in header.shapes.values())
