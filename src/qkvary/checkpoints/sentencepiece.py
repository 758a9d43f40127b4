"""Reads SentencePiece model files: the pieces of a BPE model, and how spaces are handled.

The file is a protocol buffer, a sequence of numbered fields. Only the fields that affect how a text
is split into tokens are read. Models that are neither BPE models nor character models are refused.
"""

import struct
from collections.abc import Iterable, Iterator

from qkvary.data.tokenizers import PieceTokenizer
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.untrusted_files import MAX_ENTRIES, explain

SPACE = "▁".encode()
"""The character that stands for a space in pieces."""
_PIECE, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _TYPE = 1, 2, 3
_MODEL_TYPE, _BPE, _CHARACTERS = 3, 2, 4
_CHARACTER_MAP, _ADD_PREFIX, _REMOVE_EXTRA_SPACES = 2, 3, 4
_USER_DEFINED = 4
PIECE_NAMES = (b"<unk>", b"<s>", b"</s>")
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def read_pieces(data: bytes, where: str) -> PieceTokenizer:
    """Return the tokenizer that a SentencePiece model file describes."""
    try:
        fields = list(_fields(data))
        pieces = [_read_piece(value) for value in _messages(fields, _PIECE)]
        trainer, normalizer = (_merge_messages(fields, one) for one in (_TRAINER, _NORMALIZER))
    except (IndexError, KeyError, ValueError, struct.error):
        raise DamagedError(f"{where} is not a SentencePiece model") from None
    kind = trainer.get(_MODEL_TYPE)
    obstacles = {
        "a model type other than BPE and character": kind not in (_BPE, _CHARACTERS),
        "a character model with pieces of several characters": kind == _CHARACTERS
        and any(
            len(text.decode("utf-8", "replace")) > 1 and not text.startswith(b"<0x")
            for text, _, _ in pieces[3:]
        ),
        "a map of characters": bool(normalizer.get(_CHARACTER_MAP)),
        "user-defined pieces": any(kind == _USER_DEFINED for _, _, kind in pieces),
        "other first pieces than <unk>, <s>, </s>": tuple(one[0] for one in pieces[:3])
        != PIECE_NAMES,
    }
    found = next((name for name, is_there in obstacles.items() if is_there), None)
    if found is not None:
        raise UsageError(f"{where} has {found}, which this program does not support")
    with explain(where, "is not a tokenizer"):
        return PieceTokenizer(
            [text.replace(SPACE, b" ") for text, _, _ in pieces],
            [score for _, score, _ in pieces],
            # Files omit the default, which is 1.
            joins_spaces=bool(normalizer.get(_REMOVE_EXTRA_SPACES, 1)),
            adds_space=bool(normalizer.get(_ADD_PREFIX, 1)),
        )


def _messages(fields: Iterable[tuple[int, int | bytes]], number: int) -> Iterator[bytes]:
    return (value for name, value in fields if name == number and isinstance(value, bytes))


def _merge_messages(
    fields: Iterable[tuple[int, int | bytes]], number: int
) -> dict[int, int | bytes]:
    return {
        name: value for message in _messages(fields, number) for name, value in _fields(message)
    }


def _read_piece(message: bytes) -> tuple[bytes, float, int]:
    found = dict(_fields(message))
    match found[_TEXT], found.get(_SCORE, b"\0" * 4), found.get(_TYPE, 1):
        case bytes(text), bytes(score), int(kind):
            return text, struct.unpack("<f", score)[0], kind
        case _:
            raise ValueError("expected a text, a score and a type, got other fields")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    place = 0
    for _ in range(MAX_ENTRIES):
        if place >= len(data):
            return
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
            raise ValueError("expected a field that ends inside its message, got a longer field")
        yield number, data[place : place + size]
        place += size
    raise ValueError(f"expected at most {MAX_ENTRIES:,} fields, got more")


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for index in range(_LONGEST_VARINT):
        byte = data[place + index]
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, place + index + 1
    raise ValueError("expected a whole number of at most ten bytes, got a longer one")
