"""Seeded mutations of files: of their bytes, and of the values of a JSON document."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

Change = Callable[[bytes, random.Random], bytes]
EXTREMES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 255, 2**31, 2**63, 10**30),
    *(0.5, -0.0, 1e308, 5e-324),
    *("", "a", "a\nb", "\ud800", "a" * 3000, "../x"),
    *([], {}, [[]], [0, -1], {"a": None}),
)


def change_bytes(data: bytes, draw: random.Random) -> bytes:
    """Cut, overwrite, insert, remove or repeat some bytes; early ones more often."""
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        place = int(len(found) * draw.random() ** draw.choice((1, 4)))
        size = draw.choice((1, 1, 2, 4, 8, 64))
        match draw.randrange(6):
            case 0:
                del found[place:]
            case 1:
                found[place : place + size] = draw.randbytes(size)
            case 2:
                found[place : place + size] = draw.choice((b"\0", b"\xff", b"\x7f")) * size
            case 3:
                found[place:place] = draw.randbytes(size)
            case 4:
                del found[place : place + size]
            case _:
                found[place:place] = found[place : place + size] * draw.choice((1, 3, 1000))
    return bytes(found)


def change_values(content: Any, draw: random.Random) -> Any:
    """Replace, remove, add or nest a value somewhere in a document."""
    copied = json.loads(json.dumps(content))
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        holder, key = _choose_place(copied, draw)
        match draw.randrange(7):
            case 0 | 1 | 2:
                holder[key] = copy.deepcopy(draw.choice(EXTREMES))
            case 3:
                del holder[key]
            case 4:
                holder[key] = _nest(holder[key], draw.choice((1, 3, 40, 120)))
            case 5:
                holder[key] = _near(holder[key], draw)
            case _:
                other, name = _choose_place(copied, draw)
                holder[key] = json.loads(json.dumps(other[name]))
    return copied


def _nest(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def _near(value: Any, draw: random.Random) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        near = (value + 1, value - 1, -value, value * 2, value * 10**6, value + 0.5, str(value))
        return draw.choice(near)
    if isinstance(value, str):
        return draw.choice((value[:-1], value * 2, value.upper(), [value], value + "\0"))
    if isinstance(value, list):
        numbered = {str(place): one for place, one in enumerate(value)}
        return draw.choice((value[:-1], value * 2, value[::-1], numbered))
    return [value]


def _choose_place(content: Any, draw: random.Random) -> tuple[Any, Any]:
    """A list or object inside a document, and a key of it; each level is as likely as the next."""
    holder, key = [content], 0
    while isinstance(holder[key], dict | list) and holder[key]:
        holder = holder[key]
        key = draw.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        if draw.random() < 0.4:
            break
    return holder, key


def change_json(data: bytes, draw: random.Random) -> bytes:
    """Change the values of a JSON document, or now and then its bytes."""
    if draw.random() < 0.2:
        return change_bytes(data, draw)
    return json.dumps(change_values(json.loads(data), draw)).encode()
