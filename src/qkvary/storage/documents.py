"""Versioned JSON documents; reading rejects damaged documents and newer versions. Torch-free."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from qkvary.storage.errors import DamagedError, NewerFormatError
from qkvary.storage.jsonvalues import decode, encode

Read = TypeVar("Read")
"""Type of the value that a document is read into."""
_LONGEST_REASON = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFormat:
    """The format of one kind of documents."""

    name: str
    """Name of a document for messages, with its article: ``a measurement of decoding``."""
    version: int
    """Incremented when a field is added, renamed or changes its meaning."""
    key: str = "schema_version"
    """Key of the version in the document."""
    remedy: str = ""
    """Advice on damaged documents."""

    @property
    def version_field(self) -> dict[str, int]:
        """The version field, for documents that are written elsewhere."""
        return {self.key: self.version}

    def write(self, fields: Mapping[str, object]) -> bytes:
        """Return the bytes of a document, deterministically."""
        return (encode({**fields, **self.version_field}, indent=1) + "\n").encode()

    def read(self, data: bytes, where: object, build: Callable[[dict[str, Any]], Read]) -> Read:
        """Return the value that a document holds.

        Args:
            data: The bytes of the document.
            where: Name of the document in messages.
            build: Builds the value from the fields without the version; raises ``ValueError``,
                ``TypeError`` or ``KeyError`` for invalid fields.

        Raises:
            DamagedError: if the document is damaged.
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
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            reason = str(error)
        raise self._damaged(where, reason)

    def check(self, fields: Mapping[str, object], where: object) -> None:
        """Check the version of a document's fields.

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
