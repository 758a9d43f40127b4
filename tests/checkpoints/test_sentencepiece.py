"""Pieces, scores and the flag for spaces of SentencePiece models; invalid files are rejected."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.checkpoints.sentencepiece import joins_spaces, read_pieces
from qkvary.storage.errors import DamagedError, QkvaryError, UsageError


def field(number: int, kind: int, body: bytes) -> bytes:
    size = bytes((len(body),)) if kind == 2 else b""
    return bytes((number << 3 | kind,)) + size + body


PIECE = field(1, 2, field(1, 2, b"a") + field(2, 5, b"\0\0\0\0"))
NAME = field(1, 2, b"identity")


@pytest.mark.parametrize(
    ("normalizer", "expected"),
    [
        (NAME + field(3, 0, b"\1") + field(4, 0, b"\0"), False),
        (NAME + field(4, 0, b"\1"), True),
        (NAME + field(4, 0, b"\x80\x01"), True),
        (NAME, True),
        (b"", True),
    ],
)
def test_the_flag_is_found_or_the_default_holds(normalizer: bytes, expected: bool) -> None:
    eight = field(9, 1, b"12345678")
    data = PIECE + field(3, 2, normalizer) + eight + PIECE
    assert joins_spaces(data, "m") is expected
    assert joins_spaces(PIECE, "m") is True


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"\x80" * 11, field(1, 2, b"abc")[:-1], field(1, 3, b""), field(1, 5, b"ab")],
)
def test_invalid_messages_are_rejected(data: bytes) -> None:
    with pytest.raises(DamagedError, match="m is not a SentencePiece model"):
        joins_spaces(data, "m")


@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_flag_or_refused(data: bytes) -> None:
    try:
        assert joins_spaces(data, "m") in {True, False}
    except DamagedError as error:
        assert str(error) == "m is not a SentencePiece model"  # noqa: PT017  both ends are right


def long_field(number: int, body: bytes) -> bytes:
    return bytes((number << 3 | 2, len(body) & 127 | 128, len(body) >> 7)) + body


def piece(text: str, score: float) -> bytes:
    return long_field(1, long_field(1, text.encode()) + field(2, 5, struct.pack("<f", score)))


BYTES = b"".join(piece(f"<0x{byte:02X}>", 0.0) for byte in range(256))
CONTROL = b"".join(piece(name, 0.0) for name in ("<unk>", "<s>", "</s>"))
LETTERS = piece("\u2581a", -1.0) + piece("\u2581", -2.0) + piece("a", -3.0)
KIND = field(2, 2, field(3, 0, b"\2"))


def test_pieces_and_scores_are_read() -> None:
    found = read_pieces(CONTROL + BYTES + LETTERS + KIND, "m")
    assert found.pieces[-3:] == (b" a", b" ", b"a")
    assert found.scores[-3:] == (-1.0, -2.0, -3.0)
    assert found.encode("a  a") == [1, 259, 259]
    assert found.joins_spaces


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (CONTROL + BYTES + LETTERS, UsageError, "expected a SentencePiece model of the kind BPE"),
        (CONTROL + LETTERS + KIND, DamagedError, "expected a token for each of 256 bytes, got 0"),
        (CONTROL + piece("a", float("nan")) + BYTES + KIND, DamagedError, "finite scores"),
        (field(1, 2, field(1, 2, b"\xff")), DamagedError, "m is not a SentencePiece model"),
        (field(1, 2, field(1, 0, b"\1")), DamagedError, "m is not a SentencePiece model"),
        (field(1, 2, field(2, 0, b"\1")), DamagedError, "m is not a SentencePiece model"),
    ],
)
def test_other_models_are_refused(data: bytes, error: type[QkvaryError], message: str) -> None:
    with pytest.raises(error) as caught:
        read_pieces(data, "m")
    assert message in str(caught.value)


@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_tokenizer_or_refused(data: bytes) -> None:
    with pytest.raises((DamagedError, UsageError)):
        read_pieces(data, "m")
