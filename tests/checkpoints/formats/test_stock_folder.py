"""GPT-2 and Llama of transformers give the same logits here; other folders are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFReader
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
)
from transformers.utils import logging

from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.chat_templates import read_chat_template
from qkvary.checkpoints.huggingface.folders import export_folder
from qkvary.cli.main import main
from qkvary.storage.errors import DamagedError, QkvaryError, UnsafeError, UsageError
from tests.contracts.variant_cases import distance

TOKENS = (torch.arange(2 * 9).view(2, 9) * 5) % 29
GPT2 = {"vocab_size": 29, "n_positions": 17, "n_embd": 12, "n_layer": 2, "n_head": 3}
LLAMA = {
    "vocab_size": 29,
    "hidden_size": 24,
    "intermediate_size": 19,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 17,
}
ROUNDING = 1e-6
"""Relative: transformers has the rotation of Llama in float32, whatever the weights."""
CHAT = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}</{{ message.role }}>"
    "{% endfor %}"
)
ENDS = {"bos_token_id": None, "eos_token_id": None}


def save(folder: Path, config: PreTrainedConfig, **options: Any) -> torch.Tensor:
    """Write a random network, and return its logits."""
    logging.disable_progress_bar()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
        model.save_pretrained(folder, **options)
        return model(TOKENS).logits


def make_gpt2(**changes: Any) -> GPT2Config:
    return GPT2Config(**{**GPT2, **ENDS, **changes})


def make_llama(**changes: Any) -> LlamaConfig:
    return LlamaConfig(**{**LLAMA, **ENDS, **changes})


UNTIED = {"tie_word_embeddings": False, "n_inner": 31, "layer_norm_epsilon": 0.01}


@pytest.mark.parametrize("changes", [{}, {"activation_function": "gelu", **UNTIED}])
def test_logits_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    """Of GPT-2; the other families are in ``tests/contracts``."""
    expected = save(tmp_path, make_gpt2(**changes))
    loaded = load_checkpoint(tmp_path)
    assert loaded.tokenizer is None
    with torch.no_grad():
        assert distance(loaded.network(TOKENS), expected) < ROUNDING


def put(folder: Path, **tensors: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), **{k.replace("__", "."): v for k, v in tensors.items()}}, path)


@pytest.mark.parametrize("make", [make_gpt2, make_llama])
def test_a_stored_head_that_contradicts_the_tie_is_used(make: Any, tmp_path: Path) -> None:
    tied = save(tmp_path, make(tie_word_embeddings=True))
    network = load_checkpoint(tmp_path).network
    # A copy of the embedding is the same network.
    put(tmp_path, lm_head__weight=network.embedding.detach().clone())
    assert load_checkpoint(tmp_path).network.config.tied_head
    put(tmp_path, lm_head__weight=torch.randn_like(network.embedding))
    with pytest.warns(UserWarning, match=r"lm_head\.weight differs .* stored head is used"):
        found = load_checkpoint(tmp_path).network
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    with torch.no_grad():
        expected = theirs(TOKENS).logits
        assert distance(found(TOKENS), expected) < ROUNDING
        assert distance(expected, tied) > 0.1


def test_older_gpt2_files_are_read(tmp_path: Path) -> None:
    """Names without a prefix, and a mask per layer."""
    expected = save(tmp_path, make_gpt2())
    path = tmp_path / "model.safetensors"
    older = {name.removeprefix("transformer."): one for name, one in load_file(path).items()}
    older["h.0.attn.bias"] = torch.ones(1, 1, 17, 17, dtype=torch.float64).tril()
    older["h.0.attn.masked_bias"] = torch.tensor(-1e9, dtype=torch.float64)
    save_file(older, path)
    with torch.no_grad():
        assert distance(load_checkpoint(tmp_path).network(TOKENS), expected) < ROUNDING


def test_what_was_exported_comes_back(tmp_path: Path) -> None:
    save(tmp_path / "first", make_gpt2())
    loaded = load_checkpoint(tmp_path / "first")
    export_folder(loaded, tmp_path / "second", to="gpt2")
    again = load_checkpoint(tmp_path / "second").network
    assert again.config.block == loaded.network.config.block
    with torch.no_grad():
        assert distance(again(TOKENS), loaded.network(TOKENS)) < ROUNDING
    data = (tmp_path / "second" / "model.safetensors").read_bytes()
    (tmp_path / "second" / "model.safetensors").write_bytes(data[:-1] + b"x")
    with pytest.raises(DamagedError):
        load_checkpoint(tmp_path / "second")


def change(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    content = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({name: one for name, one in content.items() if one != "drop"}))


@pytest.mark.parametrize(
    ("kind", "fields", "error", "message"),
    [
        ("gpt2", {"activation_function": "silu"}, UsageError, "expected one of gelu_new, gelu_py"),
        ("gpt2", {"n_embd": "drop"}, UsageError, "expected the field n_embd"),
        ("gpt2", {"n_layer": 3}, DamagedError, "lacks the tensor transformer.h.2.ln_1.weight"),
        ("gpt2", {"n_layer": 900}, DamagedError, "states 900 layers, but the folder has only"),
        ("llama", {"model_type": "qwen2"}, DamagedError, "lacks the tensor model.layers.0.self_at"),
        ("llama", {"model_type": "mamba"}, UsageError, "expected a supported family (gpt2, l"),
        ("llama", {"model_type": "seer"}, UsageError, "known families such as llama"),
    ],
)
def test_other_networks_are_refused(
    kind: str, fields: dict[str, Any], error: type[QkvaryError], message: str, tmp_path: Path
) -> None:
    save(tmp_path, make_gpt2() if kind == "gpt2" else make_llama())
    change(tmp_path, **fields)
    with pytest.raises(error) as caught:
        load_checkpoint(tmp_path)
    assert message in str(caught.value)


def test_damaged_folders_are_refused(tmp_path: Path) -> None:
    save(tmp_path, make_llama(), max_shard_size="10KB")
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    data = shard.read_bytes()
    shard.unlink()
    with pytest.raises(DamagedError, match=f"has no {shard.name}, which its index names"):
        load_checkpoint(tmp_path)
    shard.write_bytes(data[:-9])
    with pytest.raises(DamagedError, match="is not a safetensors file"):
        load_checkpoint(tmp_path)
    for names in ({"a": "../away.safetensors"}, {}, []):
        index.write_text(json.dumps({**content, "weight_map": names}))
        with pytest.raises(DamagedError, match="lists no shards, or lists shards outside its own"):
            load_checkpoint(tmp_path)
    index.write_text("{")
    with pytest.raises(DamagedError):
        load_checkpoint(tmp_path)
    index.unlink()
    with pytest.raises(DamagedError, match=r"has no model\.safetensors"):
        load_checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    with pytest.raises(UnsafeError, match="is a pickle"):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UnsafeError):
        load_checkpoint(tmp_path)


NAMED = [{"name": "tools", "template": "other"}, {"name": "default", "template": CHAT}]


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template.jinja": CHAT, "tokenizer_config.json": '{"chat_template": "older"}'},
        {"tokenizer_config.json": json.dumps({"chat_template": NAMED})},
    ],
)
def test_a_chat_template_goes_through_every_export(tmp_path: Path, files: dict[str, str]) -> None:
    save(tmp_path / "stock", make_llama(vocab_size=256))
    for name, text in files.items():
        (tmp_path / "stock" / name).write_text(text, "utf-8")
    for out, to in (("a.gguf", "gguf"), ("own", "transformers")):
        words = ["--out", str(tmp_path / out), "--to", to, "--tokenizer", "bytes"]
        assert main(["export", str(tmp_path / "stock"), *words]) == 0
        assert read_chat_template(tmp_path / out) == CHAT
    words = ["--rewrite", "gauge", "--out", str(tmp_path / "same")]
    assert main(["convert", str(tmp_path / "stock"), *words]) == 0
    assert read_chat_template(tmp_path / "same") == CHAT
    written = GGUFReader(tmp_path / "a.gguf").get_field("tokenizer.chat_template")
    assert written is not None
    assert written.contents() == CHAT
    reader = AutoTokenizer.from_pretrained(tmp_path / "own")
    text = reader.apply_chat_template([{"role": "user", "content": "hé"}], tokenize=False)
    assert text == "<user>hé</user>"
