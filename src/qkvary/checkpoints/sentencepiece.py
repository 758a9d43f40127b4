"""One flag of a SentencePiece model file: whether runs of spaces become one.

The file is a protocol buffer: fields, each a number and a value. Only the fields on the way to the
flag are looked at; the pieces come from elsewhere.
"""

from collections.abc import Iterator

from qkvary.storage.errors import DamagedError

_NORMALIZER, _REMOVE_EXTRA_SPACES = 3, 4
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def joins_spaces(data: bytes, where: str) -> bool:
    """Whether the model's normaliser strips spaces at the ends and joins them inside.

    Args:
        data: The bytes of a ``.model`` file.
        where: How it is called in messages.

    Raises:
        DamagedError: if the bytes are no protocol buffer.
    """
    found = True
    try:
        for number, value in _fields(data):
            if number == _NORMALIZER and isinstance(value, bytes):
                flags = [flag for name, flag in _fields(value) if name == _REMOVE_EXTRA_SPACES]
                # The format's default, which is not stored, is to join.
                found = bool(flags[-1]) if flags else True
    except (IndexError, ValueError):
        raise DamagedError(f"{where} is no SentencePiece model") from None
    return found


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Every field of a message: its number, and a whole number or bytes."""
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
            raise ValueError("expected a field inside the message, got one that leaves it")
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
