"""JSON documents that say which version of their form they have.

What is read has one of three outcomes: it is sound, a newer qkvary wrote it, or it is damaged. Each
kind of document keeps the name that its version has in the file. Torch-free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from qkvary.storage.errors import DamagedError, NewerFormatError
from qkvary.storage.jsonvalues import decode, encode

Read = TypeVar("Read")
"""What a document is read as."""
_LONGEST_REASON = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How documents of one kind are written, and which of them can be read."""

    name: str
    """What a document is, with its article: ``a measurement of decoding``."""
    version: int
    """Raised when a field is added, renamed or changes its meaning."""
    key: str = "schema_version"
    """What the version is called in the document."""
    remedy: str = ""
    """What can be done about a damaged document."""

    @property
    def mark(self) -> dict[str, int]:
        """The version under its name, for documents that something else writes."""
        return {self.key: self.version}

    def write(self, fields: Mapping[str, object]) -> bytes:
        """Return the bytes of a document; equal fields give equal bytes."""
        return (encode({**fields, **self.mark}, indent=1) + "\n").encode()

    def read(self, data: bytes, where: object, build: Callable[[dict[str, Any]], Read]) -> Read:
        """Return what a document holds.

        Args:
            data: Its bytes.
            where: What it is called in messages.
            build: Makes it from its fields, without the version; raises ``ValueError``,
                ``TypeError`` or ``KeyError`` for fields that do not fit.

        Raises:
            DamagedError: if it is not what ``write`` gives.
            NewerFormatError: if a newer qkvary wrote it.
        """
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
        except (TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
            reason = str(error)
        raise self._damaged(where, reason)

    def check(self, fields: Mapping[str, object], where: object) -> None:
        """Refuse fields that are not of this version.

        Raises:
            DamagedError: if they have another version, or none.
            NewerFormatError: if a newer qkvary wrote them.
        """
        version = fields.get(self.key)
        if version == self.version and version is not True:
            return
        if isinstance(version, int) and version > self.version:
            raise NewerFormatError(
                f"{where} has {self.key} {version}, this qkvary reads {self.version}; use a newer "
                "qkvary"
            )
        raise self._damaged(where, f"expected {self.key} {self.version}, got {version!r}")

    def _damaged(self, where: object, reason: str) -> DamagedError:
        shown = " ".join(reason.split())[:_LONGEST_REASON]
        remedy = f"; {self.remedy}" if self.remedy else ""
        return DamagedError(f"{where} is not {self.name}: {shown}{remedy}")
