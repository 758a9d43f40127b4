"""Token arrays equal those of each tokenizer, however a document is split."""

import itertools
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.data import encoding
from qkvary.data.byte_pairs import BytePairTokenizer
from qkvary.data.documents import Document
from qkvary.data.encoding import cut_text, digest_of, encode_documents, token_width
from qkvary.data.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer
from qkvary.storage.errors import UsageError
from tests.conftest import examples
from tests.data.merged import KINDS, merges_of
from tests.data.test_library_tokenizers import like_gpt2, with_spaces

LETTERS = " \n\t\x1c\x85\u00a0'stde.,01é戦"


@cache
def every() -> dict[str, Tokenizer]:
    found: dict[str, Tokenizer] = {kind: BytePairTokenizer(merges_of(kind)) for kind in KINDS}
    return found | {
        "bytes": ByteTokenizer(has_separator=True),
        "characters": CharacterTokenizer(LETTERS[::-1], has_separator=True),
        "like gpt2": like_gpt2(),
        "with spaces": with_spaces(),
    }


NAMES = [*KINDS, "bytes", "characters", "like gpt2", "with spaces"]


@pytest.mark.parametrize("name", NAMES)
@examples(20)
@given(text=st.text(alphabet=LETTERS, min_size=1, max_size=60))
def test_a_split_document_has_the_tokens_of_the_whole(name: str, text: str) -> None:
    tokenizer = every()[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "PIECE_CHARACTERS", 3)
        patch.setattr(encoding, "LIBRARY_CHARACTERS", 3)
        (found,) = encode_documents(tokenizer, [Document(text, "here")])
    assert found.tokens.tolist() == [*tokenizer.encode(text), tokenizer.separator]
    assert found.text_bytes == len(text.encode())
    assert found.digest == digest_of(f" {text}\n")


@given(text=st.text(alphabet=LETTERS, max_size=80), length=st.integers(1, 20))
def test_cuts_are_before_spaces_after_other_characters(text: str, length: int) -> None:
    parts = list(cut_text(text, length))
    assert "".join(parts) == text
    for before, after in itertools.pairwise(parts):
        assert after[0] in " \n"
        assert not before[-1].isspace()
        assert len(before) >= length


def test_an_unknown_character_is_rejected_with_its_location() -> None:
    with pytest.raises(UsageError, match=r"^book:3: expected one of .* got 'z'"):
        encode_documents(every()["characters"], [Document("stz", "book:3")])


@pytest.mark.parametrize(("vocabulary", "width"), [(2, 2), (65_536, 2), (65_537, 4), (256_000, 4)])
def test_tokens_have_the_smallest_width(vocabulary: int, width: int) -> None:
    assert token_width(vocabulary) == width
