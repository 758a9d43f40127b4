"""Tokenizers of Hugging Face: tokens, bytes, and checkpoints."""

import json
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from qkvary.data.byte_pairs import byte_letters
from qkvary.data.library_tokenizers import LibraryTokenizer
from qkvary.data.tokenizer_files import load_tokenizer
from qkvary.storage.errors import UsageError
from tests.conftest import examples
from tests.data.merged import merges_of
from tests.data.test_tokenizers import spelled

# The name of the argument looks like that of a secret to the linter.
UNKNOWN = {name: {"unk_token": name} for name in ("<unk>", "[UNK]", "a")}


@cache
def library_gpt2(listed: str) -> LibraryTokenizer:
    """GPT-2's way with a list of merges, by the library."""
    merges = [tuple(line.split(" ")) for line in listed.split("\n")[1:] if line]
    pieces = [*byte_letters(), *(first + second for first, second in merges)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|endoftext|>"])
    return LibraryTokenizer(made.to_str())


def like_gpt2(kind: str = "stand-in") -> LibraryTokenizer:
    return library_gpt2(merges_of(kind))


@cache
def with_spaces() -> LibraryTokenizer:
    """The way of Llama 2: a mark for spaces, and bytes for what is not known."""
    bytes_of = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = sorted(set("▁thecatsonm,andorw 1234."))
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "c"), ("a", "t"), ("▁c", "at")]
    pieces = ["<unk>", "<s>", "</s>", *bytes_of, *letters, *map("".join, merges)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, **UNKNOWN["<unk>"], byte_fallback=True)
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return LibraryTokenizer(made.to_str())


@examples(20)
@given(text=st.text(alphabet="the cat's naï戦🙂\n", min_size=1))
def test_text_survives_a_round_trip(text: str) -> None:
    assert spelled(like_gpt2(), like_gpt2().encode(text)).decode() == text
    assert spelled(with_spaces(), with_spaces().encode(text)).decode() == text


def test_no_special_tokens_truncation_or_padding() -> None:
    content = json.loads(with_spaces().describe()["content"])
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    made = LibraryTokenizer(json.dumps({**content, "truncation": cut}))
    tokens = made.encode("the cat sat on the mat")
    assert len(tokens) > 2
    assert 1 not in tokens
    # What marks documents off in a text is a text like any other.
    assert 2 not in made.encode("a</s>b")


def test_files_and_folders(tmp_path: Path) -> None:
    content = with_spaces().describe()["content"]
    (tmp_path / "tokenizer.json").write_text(content, "utf-8")
    by_file = load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert by_file.separator == 2
    assert load_tokenizer(str(tmp_path)).describe() == by_file.describe()
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"eos_token": {"content": "<unk>"}}), "utf-8")
    assert load_tokenizer(str(tmp_path)).separator == 0
    config.write_text(json.dumps({"eos_token": "<s>"}), "utf-8")
    assert load_tokenizer(str(tmp_path)).separator == 1
    assert load_tokenizer(str(tmp_path), separator="</s>").separator == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "got invalid JSON"),
        ("[]", "another JSON document"),
        ('{"model": 1}', "got something else"),
        ('{"model": {"type": "BPE"}, "version": "9"}', "got something else"),
    ],
)
def test_invalid_tokenizers_are_rejected(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LibraryTokenizer(content)
    path = tmp_path / "tokenizer.json"
    path.write_text(content, "utf-8")
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        load_tokenizer(str(path))
