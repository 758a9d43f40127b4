"""The flag for spaces in a SentencePiece model is found; invalid files are rejected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkvary.checkpoints.sentencepiece import joins_spaces
from qkvary.storage.errors import DamagedError


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
