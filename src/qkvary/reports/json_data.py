"""Makes JSON documents for other programs: the schema's version comes first, and NaN is null."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

SCHEMA_VERSION = 1


def to_json(document: Mapping[str, Any]) -> str:
    """Return a document as JSON text; NaN and infinities become null."""
    content = {"schema_version": SCHEMA_VERSION, **_plain(document)}
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """Return JSON-ready data of dataclasses, mappings, sequences and paths."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value)
        return {str(key): _plain(item) for key, item in pairs.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
