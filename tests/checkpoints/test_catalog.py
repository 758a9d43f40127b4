"""Every checkpoint format is recognised by its files, and costs what loads under its name."""

import math
from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

from qkvary.arch.models import as_model
from qkvary.checkpoints.catalog import FORMATS, find_reference, load_checkpoint
from qkvary.checkpoints.gguf.export import export_gguf
from qkvary.checkpoints.gguf.headers import read_file
from qkvary.checkpoints.huggingface.causal import QKVForCausalLM
from qkvary.checkpoints.huggingface.folders import export_folder
from qkvary.checkpoints.models import LoadedModel
from qkvary.costs.engines import sequence_bytes
from qkvary.costs.formats import parse_format
from qkvary.costs.parameters import model_parameters
from qkvary.storage.errors import UnsafeError, UsageError
from tests.checkpoints.gguf.test_networks import PORTABLE, build_portable, write
from tests.checkpoints.test_models import make_model
from tests.fuzz.formats import FORMATS as FILES
from tests.reference import char_gpt, llama2c


def test_every_format_is_recognised_as_itself_only_and_loads(tmp_path: Path) -> None:
    llama2c.write_stand_in(tmp_path / "llama2c")
    char_gpt.write_stand_in(tmp_path / "char_gpt")
    QKVForCausalLM.wrap(make_model()).save_pretrained(tmp_path / "transformers_folder")
    (tmp_path / "gguf").mkdir()
    export_gguf(LoadedModel(make_model(), None), tmp_path / "gguf" / "model.gguf")
    latent = LoadedModel(build_portable("Q-K=V@decoupled-4@kv-norm"), None)
    export_folder(latent, tmp_path / "latent", to="deepseek")
    logging.disable_progress_bar()
    stock = GPT2Config(vocab_size=7, n_positions=5, n_embd=4, n_layer=1, n_head=2)
    GPT2LMHeadModel(stock).save_pretrained(tmp_path / "stock_folder")
    names = ("gguf", "transformers_folder", "char_gpt", "stock_folder", "llama2c")
    known = {name: f"formats.{name}.load" for name in names}
    assert [one.loader for one in FORMATS] == ["models.load_model", *known.values()]
    for folder, loader in {**known, "latent": known["stock_folder"]}.items():
        (found, *_) = [one for one in FORMATS if one.recognises(tmp_path / folder)]
        assert found.loader == loader
        assert found.load(tmp_path / folder).network.config.vocabulary


EXTRA = {
    # Its suffix is that of llama2.c, and its beginning that of a zip file, as of any pickle.
    "training_args.bin": b"PK\x03\x04" + bytes(60),
    "pytorch_model.bin": b"PK\x03\x04" + bytes(60),
    "other.gguf": None,
}


@pytest.mark.parametrize("name", EXTRA)
@pytest.mark.parametrize("kind", ["llama config", "character config", "own config"])
def test_weights_with_their_configuration_come_before_files_beside_them(
    kind: str, name: str, tmp_path: Path
) -> None:
    folder = FILES[kind].make(tmp_path).parent
    network = load_checkpoint(folder).network
    if (data := EXTRA[name]) is not None:
        (folder / name).write_bytes(data)
    else:
        export_gguf(LoadedModel(make_model(), None), folder / name)
    for path in (folder, folder / "model.safetensors"):
        assert load_checkpoint(path).network.config == network.config
        weights = sum(one.numel() for one in network.parameters())
        assert model_parameters(find_reference(path)).total == weights


def test_a_configuration_without_weights_costs_but_does_not_load(tmp_path: Path) -> None:
    folder = FILES["llama config"].make(tmp_path).parent
    expected = find_reference(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert find_reference(folder) == expected
    with pytest.raises(UnsafeError, match=r"pytorch_model\.bin is a pickle"):
        load_checkpoint(folder)


def test_unknown_checkpoints_are_rejected_with_the_choices(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which does not exist"):
        load_checkpoint(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("hello", "utf-8")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(UsageError) as caught:
            load_checkpoint(path)
        assert "expected a checkpoint of a known format" in str(caught.value)
        assert "llama2.c" in str(caught.value)
        assert "save_model" in str(caught.value)


BF16 = parse_format("bf16")
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
    file = FILES[name].make(tmp_path)
    network = load_checkpoint(file.parent).network
    is_file = file.suffix in (".gguf", ".bin")
    for path in (file.parent, file) if is_file else (file.parent,):
        assert load_checkpoint(path).network.config == network.config
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
    # Engines store the shared tensor once, also if the network is given as it was trained.
    given = (as_model(network.config), folder, file)
    needed, *others = (sequence_bytes(one, context=512, stored_as=BF16) for one in given)
    assert [needed, needed] == others
    header = read_file(tmp_path / "a.gguf")
    assert model_parameters(file).total == sum(math.prod(one) for one in header.shapes.values())
