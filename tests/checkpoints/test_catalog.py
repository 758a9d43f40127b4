"""Every checkpoint format is recognised by its files."""

from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

from qkvary.checkpoints.catalog import format_names, load_checkpoint, load_format
from qkvary.checkpoints.gguf.export import export_gguf
from qkvary.checkpoints.huggingface.causal import QKVForCausalLM
from qkvary.checkpoints.huggingface.folders import export_folder
from qkvary.checkpoints.models import LoadedModel
from qkvary.storage.errors import UsageError
from tests.checkpoints.gguf.test_networks import build_portable
from tests.checkpoints.test_models import make_model
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
    known = {"llama2c", "char_gpt", "gguf", "stock_folder", "transformers_folder"}
    assert set(format_names()) == known
    for folder, name in {**dict(zip(known, known, strict=True)), "latent": "stock_folder"}.items():
        found = [n for n in format_names() if load_format(n).recognises(tmp_path / folder)]
        assert found == [name]
        assert load_format(name).load(tmp_path / folder).network.config.vocabulary


def test_a_file_of_a_checkpoint_stands_for_its_folder(tmp_path: Path) -> None:
    llama2c.write_stand_in(tmp_path / "llama")
    char_gpt.write_stand_in(tmp_path / "characters")
    for file in ("llama/model.bin", "characters/model.safetensors"):
        one, two = load_checkpoint(tmp_path / file), load_checkpoint((tmp_path / file).parent)
        assert one.network.config == two.network.config
        assert one.tokenizer is not None


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
