"""JSON with NaN and infinities, and with sorted keys.

Non-finite numbers are written as the tagged objects ``{"$float": "NaN"}``, ``"Infinity"`` and
``"-Infinity"``. Keys that start with ``$`` are escaped with another ``$``.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import cast

from qkvary.storage.untrusted_files import parse_json

JsonValue = None | bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"]
"""A JSON value; sequences are read as lists, mappings as dicts."""

_TAG = "$float"
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _tagged(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return {_TAG: name}
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {_escaped(key): _tagged(item) for key, item in items}
    if isinstance(value, (list, tuple)):
        return [_tagged(item) for item in cast("Sequence[object]", value)]
    return value


def _escaped(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"expected strings as JSON keys, got {key!r}")
    return f"${key}" if key.startswith("$") else key


def _untagged(pairs: list[tuple[str, object]]) -> object:
    if len(pairs) == 1 and pairs[0][0] == _TAG:
        name = pairs[0][1]
        if not isinstance(name, str) or name not in _SPECIAL:
            raise ValueError(f"expected one of {', '.join(_SPECIAL)} under {_TAG}, got {name!r}")
        return _SPECIAL[name]
    result = {(key.removeprefix("$")): value for key, value in pairs}
    if len(result) != len(pairs):
        raise ValueError("a JSON object holds the same key twice")
    return result


def _refuse_constant(name: str) -> object:
    raise ValueError(f"bare {name} is not JSON")


def encode(value: object, *, indent: int | None = None) -> str:
    """Return ``value`` as ASCII JSON, keys sorted, without spaces unless indented."""
    separators = (",", ": ") if indent is not None else (",", ":")
    return json.dumps(
        _tagged(value), sort_keys=True, allow_nan=False, indent=indent, separators=separators
    )


def decode(text: str | bytes) -> object:
    """Return the value that ``encode`` wrote.

    Raises:
        ValueError: if the text is not JSON, or not as ``encode`` writes it.
    """
    return parse_json(text, object_pairs_hook=_untagged, parse_constant=_refuse_constant)
