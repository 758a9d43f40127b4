"""Texts survive a round trip through tokens; texts without tokens are rejected."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.data.tokenizers import (
    ByteTokenizer,
    CharacterTokenizer,
    PieceTokenizer,
    Tokenizer,
    make_tokenizer,
)

BYTES = [f"<0x{byte:02X}>".encode() for byte in range(256)]
PIECES = [b"<unk>", b"<s>", b"</s>", *BYTES, b"ab", b" a", b"abc", b" ", b"a", b"b", b"c", b"bc"]
SCORES = [0.0] * 259 + [-0.5, -1.0, -2.0, -9.0, -9.0, -9.0, -9.0, -3.0]
EVERY = (
    CharacterTokenizer("\nab é€"),
    ByteTokenizer(),
    PieceTokenizer(PIECES, SCORES),
    PieceTokenizer(PIECES, SCORES, joins_spaces=True),
)


def spelled(tokenizer: Tokenizer, tokens: list[int]) -> bytes:
    before = [None, *tokens][: len(tokens)]
    pieces = (tokenizer.piece(token, after=one) for token, one in zip(tokens, before, strict=True))
    return b"".join(pieces)


@given(text=st.text(alphabet="\nab é€"))
def test_characters_survive_a_round_trip(text: str) -> None:
    tokenizer = CharacterTokenizer("\nab é€")
    tokens = tokenizer.encode(text)
    assert tokens == ["\nab é€".index(letter) for letter in text]
    assert spelled(tokenizer, tokens).decode() == text


@given(text=st.text())
def test_bytes_and_pieces_know_every_text(text: str) -> None:
    assert ByteTokenizer().encode(text) == list(text.encode())
    for tokenizer in (ByteTokenizer(), PieceTokenizer(PIECES, SCORES)):
        assert spelled(tokenizer, tokenizer.encode(text)).decode() == text


def test_the_highest_score_is_merged_first() -> None:
    tokenizer = PieceTokenizer(PIECES, SCORES)
    space, ab, abc, bc = (PIECES.index(piece) for piece in (b" ", b"ab", b"abc", b"bc"))
    assert tokenizer.encode("abc") == [1, space, abc]
    assert tokenizer.encode("ababbc") == [1, space, ab, ab, bc]
    assert tokenizer.encode("é") == [1, space, 3 + 0xC3, 3 + 0xA9]


@pytest.mark.parametrize("tokenizer", EVERY, ids=lambda one: type(one).__name__)
def test_a_description_makes_an_equal_one(tokenizer: Tokenizer) -> None:
    again = make_tokenizer(tokenizer.describe())
    assert type(again) is type(tokenizer)
    assert again.describe() == tokenizer.describe()
    assert again.vocabulary == tokenizer.vocabulary
    assert again.encode("a  b") == tokenizer.encode("a  b")


def test_a_character_outside_of_the_alphabet_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of the 2 characters of this model, got 'c'"):
        CharacterTokenizer("ab").encode("abc")


@pytest.mark.parametrize(
    ("pieces", "scores", "message"),
    [
        (PIECES, SCORES[1:], "expected a score for each of 267 pieces, got 266"),
        (PIECES[:200], SCORES[:200], "expected tokens for all 256 bytes or for no bytes, got"),
        (PIECES, [math.nan, *SCORES[1:]], "expected only finite scores"),
    ],
)
def test_pieces_are_checked(pieces: list[bytes], scores: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PieceTokenizer(pieces, scores)
