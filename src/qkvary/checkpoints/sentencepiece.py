"""One flag of a SentencePiece model file: whether runs of spaces are collapsed.

The file is a protocol buffer, a sequence of numbered fields. Only the path to the flag is read.
"""

from collections.abc import Iterator

from qkvary.storage.errors import DamagedError

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
