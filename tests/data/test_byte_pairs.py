"""GPT-2's tokens agree with those of another library and with the references."""

import json
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qkvary.data.byte_pairs import BytePairTokenizer
from qkvary.data.documents import FileDocuments
from qkvary.data.encoding import encode_documents
from qkvary.data.tokenizer_files import load_tokenizer
from tests.conftest import examples
from tests.data.merged import DATA, KINDS, TEXT, merges_of
from tests.data.test_library_tokenizers import library_gpt2, like_gpt2

LETTERS = st.text(
    alphabet=st.one_of(
        st.sampled_from(" \n\t'stredlvm.,01éñ−戦🙂\u0301\u00a0\u2028"),
        st.characters(max_codepoint=0x2FFF, exclude_categories=["Cs", "Cn"]),
    ),
    max_size=40,
)


@cache
def tokenizer(kind: str) -> BytePairTokenizer:
    return BytePairTokenizer(merges_of(kind))


@pytest.mark.parametrize("kind", KINDS)
@examples(20)
@given(text=LETTERS)
@example(text=TEXT)
@example(text="a<|endoftext|>b")
def test_tokens_are_those_of_the_library(kind: str, text: str) -> None:
    made = tokenizer(kind)
    tokens = made.encode(text)
    assert b"".join(map(made.piece, tokens)).decode() == text
    assert tokens == like_gpt2(kind).encode(text)


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_are_those_of_the_library(kind: str) -> None:
    made, library = tokenizer(kind), like_gpt2(kind)
    assert (made.vocabulary, made.separator) == (library.vocabulary, library.separator)
    for token in range(0, made.vocabulary, 1 + made.vocabulary // 300):
        assert made.piece(token) == library.piece(token)
    assert library.cuts_at_spaces


@pytest.mark.parametrize("line", ["a", "a b c", "zz y", "t h\nt h", "a\u4e00 b"])
def test_invalid_merges_are_rejected(line: str) -> None:
    with pytest.raises(ValueError, match=r"expected two known pieces in merge \d, got"):
        BytePairTokenizer(line)


if DATA is not None:
    # What the published files say, where there are any.
    PUBLISHED = DATA
    REFERENCE = json.loads((DATA / "gpt2_bpe" / "reference.json").read_text("utf-8"))
    COUNTS = REFERENCE["token_counts"]

    def test_samples_of_the_reference() -> None:
        made = tokenizer("published")
        for sample in REFERENCE["samples"]:
            assert made.encode(sample["text"]) == sample["ids"]
        assert made.vocabulary == REFERENCE["vocab_size"]
        assert made.separator == REFERENCE["eot_token"]

    def test_the_published_numbers_follow_from_the_merges() -> None:
        made = tokenizer("published")
        numbers = json.loads((PUBLISHED / "gpt2_bpe" / "encoder.json").read_text("utf-8"))
        assert made.numbers() == numbers
        assert load_tokenizer(str(PUBLISHED / "gpt2_bpe")).describe() == made.describe()

    def counted(place: str) -> int:
        path = PUBLISHED / place
        source = FileDocuments(files=sorted(path.glob("*.txt")) if path.is_dir() else [path])
        encoded = encode_documents(tokenizer("published"), list(source.read()))
        return sum(len(document.tokens) - 1 for document in encoded)

    @pytest.mark.parametrize(
        "place",
        [
            "english_novels/valid",
            "english_novels/test",
            "wikitext-2/valid.txt",
            "wikitext-2/test.txt",
            pytest.param("english_novels/train", marks=pytest.mark.slow),
            pytest.param("wikitext-2/train.txt", marks=pytest.mark.slow),
        ],
    )
    def test_whole_files_have_the_counts_of_the_reference(place: str) -> None:
        names = [name for name in COUNTS if name.startswith(place)]
        assert [counted(place)] == [COUNTS[name] for name in names]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_tokenizer_of_the_first_merges(kind: str) -> None:
    whole = BytePairTokenizer(merges_of(kind))
    short = whole.shortened(300)
    assert (short.vocabulary, short.separator, short.ends) == (300, 299, (299,))
    assert short.pieces == whole.pieces[:299]
    tokens = short.encode(TEXT)
    first = "\n".join(merges_of(kind).split("\n")[: 1 + 300 - 257])
    assert tokens == library_gpt2(first).encode(TEXT)
    assert len(tokens) > len(whole.encode(TEXT))
    assert whole.shortened(whole.vocabulary).describe() == whole.describe()
    assert whole.shortened(257).encode("ab") == [64, 65]
