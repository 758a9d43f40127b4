"""Our tokenizers and their vocabularies in llama.cpp, by its rules in plain loops, and back."""

import json
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryModel
from tokenizers import decoders, models, pre_tokenizers, trainers

from qkvary.checkpoints.gguf.files import pack_file
from qkvary.checkpoints.gguf.headers import parse_file
from qkvary.checkpoints.gguf.reading_vocabularies import read_tokenizer
from qkvary.checkpoints.gguf.splitting import SPLITTINGS
from qkvary.checkpoints.gguf.vocabularies import convert_tokenizer
from qkvary.checkpoints.huggingface.fast_tokenizers import convert_tokenizer as convert_fast
from qkvary.data.byte_pairs import BytePairTokenizer
from qkvary.data.library_tokenizers import LibraryTokenizer
from qkvary.data.tokenizers import (
    ByteTokenizer,
    CharacterTokenizer,
    PieceTokenizer,
    Tokenizer,
    make_tokenizer,
)
from qkvary.inference.streaming import detokenize
from qkvary.storage.errors import DamagedError, QkvaryError, UsageError
from tests.conftest import examples
from tests.data.merged import TEXT, merges_of
from tests.reference import llama2c, llama_cpp

ALPHABET = "abcxyz ,.é€\n"
ASCII = "abcxyz ,.\\\n"
PIECES = llama2c.make_pieces(llama2c.SIZES["vocab_size"])


def library(name: str) -> LibraryTokenizer:
    """A tokenizer.json that cuts texts in a way that llama.cpp knows."""
    model = LibraryModel(models.BPE(ignore_merges=name == "llama-bpe"))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator([TEXT], trainer)
    fields = json.loads(model.to_str())
    fields["pre_tokenizer"] = SPLITTINGS[name]
    return LibraryTokenizer(json.dumps(fields))


TOKENIZERS: dict[str, Tokenizer] = {
    "bytes": ByteTokenizer(),
    "bytes and end": ByteTokenizer(has_separator=True),
    "ascii": CharacterTokenizer(ASCII),
    "characters and end": CharacterTokenizer(ALPHABET, has_separator=True),
    "byte pairs": BytePairTokenizer(merges_of("stand-in")),
    "bytes as pairs": BytePairTokenizer(""),
    "pieces": PieceTokenizer(*PIECES),
    **{f"library {name}": library(name) for name in ("gpt-2", "llama-bpe", "dbrx")},
}
LETTERS = {"ascii": ASCII, "characters and end": ALPHABET}
SPECIAL = ("<s>", "</s>", "<unk>", "<|endoftext|>", "▁", "<0x")
OTHERS = st.characters(exclude_categories=["Cs", "Cn", "Co"])
TEXTS = st.text(st.sampled_from("etaoinhsr  .,<>'\n\t17") | OTHERS, max_size=30)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, llama_cpp.File]:
    folder = tmp_path_factory.mktemp("vocabularies")
    found = dict[str, llama_cpp.File]()
    for name, tokenizer in TOKENIZERS.items():
        metadata = convert_tokenizer(tokenizer, tokenizer.vocabulary + 2).metadata
        path = folder / f"{name}.gguf"
        path.write_bytes(pack_file({"general.architecture": "llama", **metadata}, {}))
        found[name] = llama_cpp.read_file(path)
    return found


@pytest.mark.parametrize("name", TOKENIZERS)
@examples(15)
@given(data=st.data())
def test_llama_cpp_makes_the_same_tokens(
    name: str, files: dict[str, llama_cpp.File], data: st.DataObject
) -> None:
    text = data.draw(st.text(st.sampled_from(LETTERS[name])) if name in LETTERS else TEXTS)
    assume(not any(special in text for special in SPECIAL))
    assert llama_cpp.tokenize(files[name], text) == TOKENIZERS[name].encode(text)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_vocabulary_becomes_the_tokenizer_again(name: str) -> None:
    ours = TOKENIZERS[name]
    metadata = convert_tokenizer(ours, ours.vocabulary + 2).metadata
    found = read_tokenizer(parse_file(pack_file(metadata, {}), "a").metadata, "a.gguf")
    assert found is not None
    assert type(found) is type(ours)
    assert found.vocabulary == ours.vocabulary
    texts = [LETTERS[name]] if name in LETTERS else [TEXT, " two  spaces ", "é€日\n\n<x>"]
    for text in texts:
        tokens = ours.encode(text)
        assert found.encode(text) == tokens
        assert [found.piece(one) for one in tokens] == [ours.piece(one) for one in tokens]
    assert found.separator == ours.separator


@pytest.mark.parametrize(
    ("key", "value", "kind", "message"),
    [
        ("add_space_prefix", 1, DamagedError, "add_space_prefix 1, expected true or false"),
        ("add_bos_token", "no", DamagedError, "add_bos_token 'no', expected true or false"),
        ("add_eos_token", True, UsageError, "add_eos_token True, expected False"),
        ("eos_token_id", 5, UsageError, "eos_token_id 5, expected 2"),
    ],
)
def test_pieces_of_other_rules_are_refused(
    key: str, value: object, kind: type[QkvaryError], message: str
) -> None:
    ours = PieceTokenizer(*PIECES)
    metadata = convert_tokenizer(ours, ours.vocabulary).metadata
    with pytest.raises(kind) as caught:
        read_tokenizer({**metadata, f"tokenizer.ggml.{key}": value}, "a.gguf")
    assert str(caught.value).startswith("a.gguf has tokenizer.ggml.")
    assert str(caught.value).endswith(message)


@pytest.mark.parametrize("adds_beginning", [True, False])
@pytest.mark.parametrize("adds_space", [True, False])
def test_what_is_added_to_a_text_is_what_llama_cpp_adds(
    adds_space: bool, adds_beginning: bool, tmp_path: Path
) -> None:
    ours = PieceTokenizer(*PIECES, adds_space=adds_space, adds_beginning=adds_beginning)
    metadata = convert_tokenizer(ours, ours.vocabulary).metadata
    named = {"general.architecture": "llama", **metadata}
    (tmp_path / "a.gguf").write_bytes(pack_file(named, {}))
    file = llama_cpp.read_file(tmp_path / "a.gguf")
    found = read_tokenizer(metadata, "a.gguf")
    assert found is not None
    again = convert_tokenizer(found, ours.vocabulary).metadata
    assert again == metadata
    assert make_tokenizer(ours.describe()).encode(TEXT) == ours.encode(TEXT)
    fast = convert_fast(ours)
    for text in (TEXT, " the cat", "é\n"):
        expected = llama_cpp.tokenize(file, text)
        assert found.encode(text) == expected
        assert fast.library.encode(text).ids == expected
        after = 1 if adds_beginning else None
        assert detokenize(found, expected, after=after) == text
    assert fast.beginning == ("<s>" if adds_beginning else None)


def test_pieces_are_read_with_the_values_that_llama_cpp_gives_where_there_are_none() -> None:
    ours = PieceTokenizer(*PIECES)
    metadata = convert_tokenizer(ours, ours.vocabulary).metadata
    for key in ("add_space_prefix", "add_bos_token", "remove_extra_whitespaces", "eos_token_id"):
        del metadata[f"tokenizer.ggml.{key}"]
    found = read_tokenizer(metadata, "a.gguf")
    assert found is not None
    assert found.encode(TEXT) == ours.encode(TEXT)
