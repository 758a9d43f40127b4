"""JSON with sorted keys, NaN and infinities, and versioned JSON documents. Torch-free.

Non-finite numbers are written as the tagged objects ``{"$float": "NaN"}``, ``"Infinity"`` and
``"-Infinity"``. Keys that start with ``$`` are escaped with another ``$``. Reading a document
rejects damage and newer versions.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from qkvary.storage.errors import DamagedError, NewerFormatError
from qkvary.storage.untrusted_files import parse_json

JsonValue = None | bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"]
"""A JSON value; sequences are read as lists, mappings as dictionaries."""

_TAG = "$float"
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
Read = TypeVar("Read")
_LONGEST_REASON = 200


def _tagged(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        name = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return {_TAG: name}
    if isinstance(value, Mapping):
        tagged: dict[str, object] = {}
        for key, item in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                raise TypeError(f"expected strings as JSON keys, got {key!r}")
            tagged[f"${key}" if key.startswith("$") else key] = _tagged(item)
        return tagged
    if isinstance(value, (list, tuple)):
        return [_tagged(item) for item in cast("Sequence[object]", value)]
    return value


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
    raise ValueError(f"{name} is not valid JSON")


def encode(value: object, *, indent: int | None = None) -> str:
    """Return ``value`` as ASCII JSON with sorted keys. If ``indent`` is None, omit all spaces."""
    separators = (",", ": ") if indent is not None else (",", ":")
    return json.dumps(
        _tagged(value), sort_keys=True, allow_nan=False, indent=indent, separators=separators
    )


def decode(text: str | bytes) -> object:
    """Return the value that ``encode`` wrote."""
    return parse_json(text, object_pairs_hook=_untagged, parse_constant=_refuse_constant)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFormat:
    """The JSON format of one kind of document, with a field for the version of the format."""

    name: str
    """The name of a document in messages, with an article: ``a measurement of decoding``."""
    version: int
    """Incremented when a field is added, renamed or changed in meaning."""
    key: str = "schema_version"
    """The field of the document that holds the version."""
    remedy: str = ""

    @property
    def version_field(self) -> dict[str, int]:
        """The version field, for documents that other code writes."""
        return {self.key: self.version}

    def write(self, fields: Mapping[str, object]) -> bytes:
        """Return the bytes of a document, deterministically."""
        return (encode({**fields, **self.version_field}, indent=1) + "\n").encode()

    def read(self, data: bytes, where: object, build: Callable[[dict[str, Any]], Read]) -> Read:
        """Return ``build(fields)``, with the fields of a document except the version."""
        try:
            found = decode(data)
            if isinstance(found, dict):
                fields = dict(cast("dict[str, Any]", found))
                self.check(fields, where)
                del fields[self.key]
                return build(fields)
            reason = "expected an object"
        except KeyError as error:
            reason = f"{error} is missing"
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            reason = str(error)
        raise self._damaged(where, reason)

    def check(self, fields: Mapping[str, object], where: object) -> None:
        """Check the version of a document's fields."""
        version = fields.get(self.key)
        if version == self.version and version is not True:
            return
        if isinstance(version, int) and version > self.version:
            raise NewerFormatError(
                f"{where} has {self.key} {version}, but this qkvary reads only {self.version}; use "
                "a newer qkvary"
            )
        raise self._damaged(where, f"expected {self.key} {self.version}, got {version!r}")

    def _damaged(self, where: object, reason: str) -> DamagedError:
        shown = " ".join(reason.split())[:_LONGEST_REASON]
        remedy = f"; {self.remedy}" if self.remedy else ""
        return DamagedError(f"{where} is not {self.name}: {shown}{remedy}")
