"""The list that a stored folder carries: each file with its size and sha256.

No valid manifest means that the folder does not exist. Bytes are handed out only after they were
compared with the list, so what is used is what was checked. The manifest is also checked against
itself: it has one spelling, and holds the digest of the rest of it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from qkvary.storage.errors import DamagedError, NewerFormatError, UnsafeError
from qkvary.storage.jsonvalues import JsonValue, decode, encode

MANIFEST_NAME = "MANIFEST.json"
FORMAT_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """What one file must be."""

    size: int
    """Bytes."""
    sha256: str
    """Digest of the bytes, hexadecimal."""

    @classmethod
    def of(cls, data: bytes) -> FileEntry:
        """Describe ``data``."""
        return cls(size=len(data), sha256=hashlib.sha256(data).hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A folder's files, and what else its writer had to say."""

    files: Mapping[str, FileEntry]
    """Name to size and digest."""
    about: Mapping[str, JsonValue]
    """Facts that belong to the whole, such as the step of a checkpoint."""

    def read(self, directory: Path, name: str) -> bytes:
        """Return the bytes of one file, checked.

        Raises:
            DamagedError: if the file is not listed, missing, or not what the manifest says.
            UnsafeError: if the file is a link out of the folder.
        """
        path = directory / name
        entry = self.files.get(name)
        if entry is None:
            raise DamagedError(f"{directory / MANIFEST_NAME} does not list {name}")
        _check_inside(directory, name)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
        if len(data) != entry.size:
            raise DamagedError(f"{path} has {len(data):,} bytes instead of {entry.size:,}")
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise DamagedError(f"{path} was changed: its sha256 is not the one in {MANIFEST_NAME}")
        return data

    def read_all(self, directory: Path) -> dict[str, bytes]:
        """Return the bytes of every file, checked.

        Raises:
            DamagedError: as ``read``.
        """
        return {name: self.read(directory, name) for name in self.files}

    def to_json(self) -> bytes:
        """Return the bytes of ``MANIFEST.json``."""
        body = {
            "format_version": FORMAT_VERSION,
            "files": {
                name: {"size": entry.size, "sha256": entry.sha256}
                for name, entry in self.files.items()
            },
            "about": self.about,
        }
        return (encode({**body, "digest": _digest(body)}, indent=1) + "\n").encode()


def _digest(body: Mapping[str, object]) -> str:
    return hashlib.sha256(encode(body).encode()).hexdigest()


def _check_inside(directory: Path, name: str) -> None:
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise UnsafeError(f"{name!r} in {directory / MANIFEST_NAME} is no name for a file")
    if (directory / name).resolve().parent != directory.resolve():
        raise UnsafeError(f"{directory / name} leads out of its folder; it is not read")


def describe(
    files: Mapping[str, bytes], *, about: Mapping[str, JsonValue] | None = None
) -> Manifest:
    """Return the manifest of ``files``.

    Raises:
        UnsafeError: if a name holds anything but letters, digits, dot, dash and underscore.
    """
    for name in files:
        _check_inside(Path(), name)
    entries = {name: FileEntry.of(data) for name, data in files.items()}
    return Manifest(files=entries, about=about or {})


def read_manifest(directory: Path, *, required: Iterable[str] = ()) -> Manifest:
    """Return the manifest of a folder; the files themselves are checked when they are read.

    Args:
        directory: The folder.
        required: Names that must be listed.

    Raises:
        DamagedError: if it is missing, is not a manifest, or was changed.
        NewerFormatError: if a newer qkvary wrote it.
        UnsafeError: if it lists a name that leaves the folder.
    """
    path = directory / MANIFEST_NAME
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
    try:
        fields = cast("dict[str, Any]", decode(data))
        changed = fields.pop("digest") != _digest(fields)
        manifest = None if changed else _parse(fields, path)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DamagedError(f"{path} is not a manifest") from None
    if manifest is None or manifest.to_json() != data:
        raise DamagedError(f"{path} was changed: it does not have its own digest")
    for name in manifest.files:
        _check_inside(directory, name)
    missing = sorted(set(required) - manifest.files.keys())
    if missing:
        raise DamagedError(f"{path} does not list {', '.join(missing)}")
    return manifest


def _parse(fields: Mapping[str, Any], path: Path) -> Manifest:
    # In every version of the format the digest covers all the rest, so that a version is believed.
    if fields["format_version"] > FORMAT_VERSION:
        raise NewerFormatError(
            f"{path} has format_version {fields['format_version']}, this qkvary reads "
            f"{FORMAT_VERSION}; use a newer qkvary"
        )
    if not isinstance(fields["about"], dict):
        raise TypeError("about must be an object")
    listed = cast("dict[str, dict[str, Any]]", fields["files"])
    entries = {
        name: FileEntry(size=entry["size"], sha256=entry["sha256"])
        for name, entry in listed.items()
    }
    return Manifest(files=entries, about=fields["about"])
