"""SentencePiece model files of the kind BPE: pieces, scores, and whether spaces are collapsed.

The file is a protocol buffer, a sequence of numbered fields, of which only these are read.
"""

import struct
from collections.abc import Iterator
from typing import cast

from qkvary.data.tokenizers import PieceTokenizer
from qkvary.storage.errors import DamagedError, UsageError

_PIECE, _TRAINER = 1, 2
_TEXT, _SCORE = 1, 2
_MODEL_TYPE, _BPE = 3, 2
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_NORMALIZER, _REMOVE_EXTRA_SPACES = 3, 4
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def joins_spaces(data: bytes, where: str) -> bool:
    """Return whether the model's normaliser strips and collapses spaces.

    Args:
        data: The bytes of a ``.model`` file.
        where: Its name in messages.

    Raises:
        DamagedError: if the bytes are not a protocol buffer.
    """
    found = True
    try:
        for number, value in _fields(data):
            if number == _NORMALIZER and isinstance(value, bytes):
                flags = [flag for name, flag in _fields(value) if name == _REMOVE_EXTRA_SPACES]
                # The default, which is not stored, is to collapse.
                found = bool(flags[-1]) if flags else True
    except (IndexError, ValueError):
        raise DamagedError(f"{where} is not a SentencePiece model") from None
    return found


def read_pieces(data: bytes, where: str) -> PieceTokenizer:
    """Return the tokenizer of a model.

    Args:
        data: The bytes of a ``.model`` file.
        where: Its name in messages.

    Raises:
        DamagedError: if the bytes are not such a model, or pieces are missing.
        UsageError: if it is a model of another kind than BPE.
    """
    joins = joins_spaces(data, where)
    pieces: list[bytes] = []
    scores: list[float] = []
    # The default, which is not stored, is unigram.
    kind = 1
    try:
        for number, value in _fields(data):
            if number == _TRAINER and isinstance(value, bytes):
                kind = dict(_fields(value)).get(_MODEL_TYPE, kind)
            if number == _PIECE and isinstance(value, bytes):
                fields = dict(_fields(value))
                text = cast("bytes", fields.get(_TEXT, b"")).decode("utf-8")
                pieces.append(text.replace(_SPACE, " ").encode())
                score = fields.get(_SCORE, bytes(4))
                scores.append(struct.unpack("<f", cast("bytes", score))[0])
    except (IndexError, ValueError, AttributeError, TypeError, struct.error):
        raise DamagedError(f"{where} is not a SentencePiece model") from None
    if kind != _BPE:
        raise UsageError(f"expected a SentencePiece model of the kind BPE in {where}, got another")
    try:
        return PieceTokenizer(pieces, scores, joins_spaces=joins)
    except ValueError as error:
        raise DamagedError(f"{where} is not a tokenizer: {error}") from None


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and value of every field of a message."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, place = _varint(data, place)
            yield number, value
            continue
        if kind == _BYTES:
            size, place = _varint(data, place)
        elif kind in (_FIXED_32, _FIXED_64):
            size = 4 if kind == _FIXED_32 else 8
        else:
            raise ValueError(f"expected a field of a known kind, got {kind}")
        if place + size > len(data):
            raise ValueError("expected a field inside the message, got one that exceeds it")
        yield number, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for index in range(_LONGEST_VARINT):
        byte = data[place + index]
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, place + index + 1
    raise ValueError("expected a whole number of at most ten bytes, got a longer one")
