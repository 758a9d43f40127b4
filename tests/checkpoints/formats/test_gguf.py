"""GGUF files as checkpoints: what is not computed here is refused, damage is one sentence."""

from pathlib import Path

import pytest
import torch

from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.formats.gguf import load, read_config
from qkvary.checkpoints.gguf.files import Tensor, pack_file
from qkvary.checkpoints.gguf.networks import convert_network
from qkvary.checkpoints.gguf.vocabularies import convert_tokenizer
from qkvary.checkpoints.reference_models import find_reference
from qkvary.data.tokenizers import CharacterTokenizer
from qkvary.nn.language_model import LanguageModel
from qkvary.storage.errors import DamagedError, QkvaryError, UsageError

NETWORK = LanguageModel(d_model=8, num_heads=2, num_layers=2, vocabulary=13, max_tokens=11).eval()
TOKENIZER = CharacterTokenizer("abcdefgh,.é", has_separator=True)
WRITTEN = convert_network(NETWORK, "f32")
METADATA = {**WRITTEN.metadata, **convert_tokenizer(TOKENIZER, 13).metadata}
DATA = pack_file(METADATA, WRITTEN.tensors)


def test_a_file_and_a_folder_with_one_load(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(DATA)
    for path in (tmp_path / "a.gguf", tmp_path):
        loaded = load_checkpoint(path)
        tokens = torch.tensor([[0, 3, 12]])
        with torch.inference_mode():
            assert torch.equal(loaded.network(tokens), NETWORK(tokens))
        assert loaded.tokenizer is not None
        assert loaded.tokenizer.describe() == TOKENIZER.describe()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"general.architecture": "mamba"}, UsageError, "architecture 'mamba'; choices:"),
        ({"llama.block_count": 3}, DamagedError, "lacks the tensor blk.2.attn_norm.weight"),
        ({"llama.block_count": 10**6}, DamagedError, "has 1,000,000 layers and fewer tensors"),
        ({"llama.attention.head_count_kv": 3}, DamagedError, "does not describe a network"),
        ({"llama.rope.scaling.type": "su"}, UsageError, "has rope.scaling.type 'su', which this"),
        ({"tokenizer.ggml.model": "bert"}, UsageError, "a tokenizer of the kind 'bert'; choices"),
        ({"tokenizer.ggml.token_type": [1, 2]}, DamagedError, "has 13 tokens and 2 types"),
        ({"tokenizer.ggml.tokens": ["ab"] * 13}, DamagedError, "has an invalid tokenizer"),
        (
            {"tokenizer.ggml.pre": "tekken", "tokenizer.ggml.tokens": ["ab"] * 13},
            UsageError,
            "cuts texts as 'tekken'; choices: gpt-2, llama-bpe",
        ),
    ],
)
def test_another_network_is_refused(
    changes: dict[str, object], error: type[QkvaryError], message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.gguf").write_bytes(pack_file({**METADATA, **changes}, WRITTEN.tensors))
    with pytest.raises(QkvaryError) as caught:
        load(tmp_path)
    assert message in str(caught.value)
    assert type(caught.value) is error
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [("rope_freqs.weight", "rope_freqs other than those of a partial"), ("a.b", "has a.b, which")],
)
def test_another_tensor_is_refused(name: str, message: str, tmp_path: Path) -> None:
    values = WRITTEN.tensors["output_norm.weight"].values[:2] * [3, 1e30]
    tensors = {**WRITTEN.tensors, name: Tensor(values, "f32")}
    (tmp_path / "a.gguf").write_bytes(pack_file(METADATA, tensors))
    with pytest.raises(UsageError, match=message):
        load(tmp_path)


def test_a_split_file_is_one(tmp_path: Path) -> None:
    """As llama.cpp splits: the metadata in the first part, each tensor in one of the parts."""
    names = list(WRITTEN.tensors)
    for number in range(3):
        some = {name: WRITTEN.tensors[name] for name in names[number::3]}
        metadata = METADATA if number == 0 else {"split.no": number}
        part = tmp_path / f"a-{number + 1:05}-of-00003.gguf"
        part.write_bytes(pack_file({**metadata, "split.count": 3}, some))
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "a.gguf").write_bytes(pack_file(METADATA, WRITTEN.tensors))
    whole = load(tmp_path / "whole").network
    for given in (tmp_path, *tmp_path.glob("*.gguf")):
        found = load(given).network
        assert found.config == whole.config == read_config(given)
        assert all(map(torch.equal, found.parameters(), whole.parameters()))
        assert find_reference(given).layers == find_reference(tmp_path / "whole").layers
    again = (tmp_path / "a-00002-of-00003.gguf").read_bytes()
    (tmp_path / "a-00003-of-00003.gguf").write_bytes(again)
    for read in (load, read_config):
        with pytest.raises(DamagedError, match="two tensors"):
            read(tmp_path)
    (tmp_path / "a-00003-of-00003.gguf").unlink()
    for read in (load, read_config):
        with pytest.raises(DamagedError, match=r"3 parts, of which a-00003-of-00003\.gguf is miss"):
            read(tmp_path)
