"""A llama2.c model agrees with its reference, and a damaged one is rejected."""

import itertools
import math
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkvary.checkpoints.catalog import load_checkpoint
from qkvary.checkpoints.formats.llama2c import load, read_tokenizer
from qkvary.storage.errors import DamagedError, QkvaryError, UnsafeError, UsageError
from tests.checkpoints.published_models import KINDS, find_model, read_reference
from tests.checkpoints.test_sentencepiece import pack_model
from tests.conftest import examples
from tests.reference import llama2c

SIZES = llama2c.SIZES
WEIGHTS = llama2c.make_weights(SIZES)
PACKED = llama2c.pack(SIZES, WEIGHTS)
PIECES, SCORES = llama2c.make_pieces(SIZES["vocab_size"])
TOKENIZER = llama2c.pack_tokenizer(PIECES, SCORES)


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return find_model("stories260K", request.param, tmp_path_factory)


def test_logits_are_the_reference_to_the_printed_digits(folder: Path) -> None:
    expected = torch.tensor(read_reference(folder)["logits_after_bos"], dtype=torch.float64)
    for dtype in (torch.float64, torch.float32):
        with torch.inference_mode():
            found = load(folder).network.to(dtype)(torch.tensor([[1]]))[0, -1]
        assert (found.double() - expected).abs().max() < 1e-5


def test_greedy_tokens_and_their_text_are_the_reference(folder: Path) -> None:
    expected = read_reference(folder)["greedy"]
    network, tokenizer = load_checkpoint(folder)
    ids = list(expected["prompt_ids"])
    with torch.inference_mode():
        while len(ids) < len(expected["ids"]):
            ids.append(int(network(torch.tensor([ids]))[0, -1].argmax()))
    assert ids == expected["ids"]
    assert tokenizer is not None
    pieces = [tokenizer.piece(b, after=a) for a, b in itertools.pairwise(ids)]
    assert b"".join(pieces).decode("utf-8", "replace") == expected["text"]


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_every_kind_of_head_equals_the_loops(tied: bool, kv_heads: int, tmp_path: Path) -> None:
    sizes = {**SIZES, "n_kv_heads": kv_heads}
    weights = llama2c.make_weights(sizes, seed=5)
    (tmp_path / "any.bin").write_bytes(llama2c.pack(sizes, weights, tied=tied))
    network, tokenizer = load(tmp_path / "any.bin")
    assert tokenizer is None
    assert network.config.tied_head is tied
    tokens = [1, 300, 7, 7, 41, 259]
    with torch.inference_mode():
        found = network.double()(torch.tensor([tokens]))[0].numpy()
    expected = llama2c.logits(sizes, weights, tokens, tied=tied)
    assert np.abs(found - expected).max() / expected.std() < 1e-12


@examples(66)
@given(text=st.text(alphabet=" theanirsg\n€é😀x", max_size=40))
def test_any_text_is_encoded_so_and_comes_back(text: str) -> None:
    tokenizer = read_tokenizer(TOKENIZER, SIZES["vocab_size"], "t")
    tokens = tokenizer.encode(text)
    assert tokens == llama2c.encode(PIECES, SCORES, text)
    pieces = [tokenizer.piece(b, after=a) for a, b in itertools.pairwise(tokens)]
    assert b"".join(pieces).decode() == text


def test_the_original_tokenizer_model_is_preferred(tmp_path: Path) -> None:
    llama2c.write_stand_in(tmp_path / "model")
    assert load(tmp_path / "model").tokenizer.encode("a  b ")[-1] == 259 + 12  # type: ignore[union-attr]
    data = pack_model(PIECES, SCORES)
    (tmp_path / "model" / f"tok{SIZES['vocab_size']}.model").write_bytes(data)
    tokenizer = load(tmp_path / "model").tokenizer
    assert tokenizer is not None
    assert tokenizer.encode(" a  b  ") == tokenizer.encode("a b")


def test_a_tokenizer_with_the_size_in_its_name_comes_first(tmp_path: Path) -> None:
    llama2c.write_stand_in(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.model").write_bytes(b"the tokenizer of another model")
    assert load(tmp_path / "model").tokenizer is not None


def header(**changes: int) -> bytes:
    fields = {**SIZES, **changes}
    return struct.pack("<7i", *fields.values()) + PACKED[28:]


def with_value(kind: str, value: float) -> bytes:
    changed = WEIGHTS[kind].copy()
    changed.flat[changed.size // 2] = value
    return llama2c.pack(SIZES, {**WEIGHTS, kind: changed})


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (PACKED[:27], DamagedError, "has 27 bytes, fewer than a header of 28"),
        (PACKED[:-4], DamagedError, "instead of the"),
        (header(dim=0), DamagedError, "has dim 0, expected 1 to"),
        (header(n_layers=2**24, hidden_dim=2**24), DamagedError, "bytes instead of the"),
        (header(n_kv_heads=4), DamagedError, "KV heads that divides the number"),
        (with_value("w2", math.nan), DamagedError, "not finite, in stack.blocks"),
        (with_value("cos", math.nan), DamagedError, "cosines that do not match the rotary base"),
        (b"24ka" + PACKED, UsageError, "a later version of the llama2.c format"),
        (b"PK\x03\x04" + PACKED, UnsafeError, "is a pickle"),
    ],
)
def test_invalid_models_are_rejected(
    data: bytes, error: type[QkvaryError], message: str, tmp_path: Path
) -> None:
    (tmp_path / "model.bin").write_bytes(data)
    with pytest.raises(error) as caught:
        load_checkpoint(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path / "model.bin") in str(caught.value)
