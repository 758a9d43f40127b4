"""A folder for ``from_pretrained`` gives the same tensors, logits and tokens."""

import dataclasses
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.huggingface.causal import QKVForCausalLM, register
from qkvary.checkpoints.huggingface.folders import export_folder
from qkvary.checkpoints.models import LoadedModel, save_model
from qkvary.data.byte_pairs import BytePairTokenizer
from qkvary.data.tokenizers import ByteTokenizer
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import UsageError
from tests.checkpoints.equal_networks import same_weights
from tests.contracts.variant_cases import make_language_model_config, randomize
from tests.data.merged import merges_of
from tests.reference import llama2c

TOKENS = torch.tensor([[1, 5, 9, 3, 7, 11, 2], [4, 4, 8, 0, 12, 6, 10]])


@pytest.fixture(autouse=True)
def without_bars() -> None:
    logging.disable_progress_bar()
    register()


def build_model(label: str = "Q-K=V", **fields: object) -> LoadedModel:
    network = LanguageModel(make_language_model_config(label, **fields)).eval()
    randomize(network, seed=17)
    return LoadedModel(network, None)


@pytest.mark.parametrize(
    ("label", "fields"),
    [
        ("Q-K=V", {}),
        ("I-K-V", {"positions": "learned", "tied_head": False, "head_bias": True}),
        ("(Q=K-V)+", {"positions": "sinusoidal"}),
        ("Q-K=V@rotary", {}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_our_own_class_has_the_same_tensors(
    tmp_path: Path, label: str, fields: dict[str, object], dtype: torch.dtype
) -> None:
    loaded = build_model(label, **fields)
    loaded.network.to(dtype)
    found = export_folder(loaded, tmp_path / "out")
    assert found.architecture == "QKVForCausalLM"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert isinstance(model, QKVForCausalLM)
    assert {one.dtype for one in model.parameters()} == {dtype}
    assert same_weights(model.network, loaded.network)
    assert torch.equal(model(TOKENS).logits, loaded.network(TOKENS))
    again = load_checkpoint(tmp_path / "out")
    assert again.network.config == loaded.network.config
    assert torch.equal(again.network(TOKENS), loaded.network(TOKENS))
    assert again.tokenizer is None


def test_a_published_model_is_llama_with_its_tokenizer(tmp_path: Path) -> None:
    llama2c.write_stand_in(tmp_path / "model")
    loaded = load_checkpoint(tmp_path / "model")
    export_folder(loaded, tmp_path / "out", to="llama")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    encoded = tokenizer(llama2c.TEXTS[0], return_tensors="pt").input_ids
    assert encoded[0].tolist() == loaded.tokenizer.encode(llama2c.TEXTS[0])
    torch.testing.assert_close(model(encoded).logits, loaded.network(encoded), rtol=0, atol=1e-4)
    assert tokenizer.decode(encoded[0], skip_special_tokens=True) == llama2c.TEXTS[0]
    assert (model.config.bos_token_id, model.generation_config.eos_token_id) == (1, [1, 2])
    with pytest.raises(UsageError, match=r"GPT-2 .*, got one with rotary positions; .* --to"):
        export_folder(loaded, tmp_path / "other", to="gpt2")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BytePairTokenizer(merges_of("stand-in"))])
def test_tokenizers_are_exported(
    tmp_path: Path, tokenizer: ByteTokenizer | BytePairTokenizer
) -> None:
    config = dataclasses.replace(
        make_language_model_config("Q-K=V"), vocabulary=tokenizer.vocabulary
    )
    network = LanguageModel(config).eval()
    export_folder(LoadedModel(network, tokenizer), tmp_path / "out")
    again = load_checkpoint(tmp_path / "out")
    assert again.tokenizer.describe() == tokenizer.describe()
    fast = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "the rain, é€"
    assert fast(text).input_ids == tokenizer.encode(text)
    assert fast.eos_token_id == tokenizer.separator
    assert fast.model_max_length == config.max_tokens


def test_only_exports_are_replaced(tmp_path: Path) -> None:
    export_folder(build_model(), tmp_path / "out")
    export_folder(build_model("I-K=V"), tmp_path / "out")
    assert load_checkpoint(tmp_path / "out").network.config == build_model("I-K=V").network.config
    save_model(tmp_path / "model", build_model().network)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("a", "utf-8")
    for name in ("model", "empty", "file"):
        with pytest.raises(UsageError, match=f"{name} is not an export that qkvary wrote"):
            export_folder(build_model(), tmp_path / name)
    assert load_checkpoint(tmp_path / "model").network.config == build_model().network.config
