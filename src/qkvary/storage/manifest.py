"""Files that are checked by digest: manifests of folders, and the numbered checkpoints of a run.

A manifest holds the size and sha256 of each file of a folder. It has a canonical encoding, and
contains its own digest. A folder without a valid manifest is damaged. Bytes are returned only after
they were checked. Torch-free.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from qkvary.storage.durable import (
    atomic_directory,
    clean_leftovers,
    make_directory,
    quarantine,
    remove_dir,
    write_new_file,
)
from qkvary.storage.environment import require_memory
from qkvary.storage.errors import DamagedError, NoValidCheckpointError, UnsafeError, UsageError
from qkvary.storage.jsonvalues import DocumentFormat, JsonValue, decode, encode
from qkvary.storage.untrusted_files import MAX_SIDE_FILE_BYTES, read_file

MANIFEST_NAME = "MANIFEST.json"
FORMAT = DocumentFormat(name="a manifest", version=1, key="format_version")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """Size and digest of a file."""

    size: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> "FileEntry":
        """Return the entry of a file whose contents are ``data``."""
        return cls(size=len(data), sha256=hashlib.sha256(data).hexdigest())


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The sizes and digests of a folder's files, with metadata."""

    files: Mapping[str, FileEntry]
    about: Mapping[str, JsonValue]
    """Further facts about the folder, such as the step of a checkpoint."""

    def read(self, directory: Path, name: str) -> bytes:
        """Return the checked bytes of a file."""
        found = self.check_size(directory, name)
        path, entry = directory / name, self.files[name]
        require_memory(found.st_size, f"reading {path} takes", "use a machine with more memory")
        try:
            data = path.read_bytes()
        except OSError as error:
            raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
        if len(data) != entry.size:
            raise _resized(path, len(data), entry)
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise _changed(path)
        return data

    def check_size(self, directory: Path, name: str) -> os.stat_result:
        """Return the status of a file after checking only its size."""
        path, entry = directory / name, self.files.get(name)
        if entry is None:
            raise DamagedError(f"{directory / MANIFEST_NAME} does not list {name}")
        try:
            found = path.stat()
        except OSError as error:
            raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
        if found.st_size != entry.size:
            raise _resized(path, found.st_size, entry)
        return found

    def check_file(self, directory: Path, name: str) -> Path:
        """Return the path of a file after checking it, without holding it in memory."""
        self.check_size(directory, name)
        path, entry = directory / name, self.files[name]
        try:
            with path.open("rb", buffering=0) as file:
                digest = hashlib.file_digest(file, "sha256")
        except OSError as error:
            raise DamagedError(f"{path} cannot be read: {error.strerror}") from None
        if digest.hexdigest() != entry.sha256:
            raise _changed(path)
        return path

    def check(self, directory: Path) -> None:
        """Check all files without holding them in memory."""
        for name in self.files:
            self.check_file(directory, name)

    def read_all(self, directory: Path) -> dict[str, bytes]:
        """Return the checked bytes of every file."""
        return {name: self.read(directory, name) for name in self.files}

    def to_json(self) -> bytes:
        """Return the bytes of ``MANIFEST.json``."""
        body = {
            **FORMAT.version_field,
            "files": {
                name: {"size": entry.size, "sha256": entry.sha256}
                for name, entry in self.files.items()
            },
            "about": self.about,
        }
        return (encode({**body, "digest": _digest(body)}, indent=1) + "\n").encode()


def _digest(body: Mapping[str, object]) -> str:
    return hashlib.sha256(encode(body).encode()).hexdigest()


def _resized(path: Path, size: int, entry: FileEntry) -> DamagedError:
    return DamagedError(f"expected {entry.size:,} bytes in {path}, got {size:,}")


def _changed(path: Path) -> DamagedError:
    return DamagedError(f"{path} was changed: its sha256 is not the one in {MANIFEST_NAME}")


def _check_inside(directory: Path, name: str) -> None:
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise UnsafeError(f"expected file names in {directory / MANIFEST_NAME}, got {name!r}")
    path = directory / name
    if path.is_symlink() and path.resolve().parent != directory.resolve():
        raise UnsafeError(f"{path} links to a file outside its folder; the file is not read")


def describe(
    files: Mapping[str, bytes], *, about: Mapping[str, JsonValue] | None = None
) -> Manifest:
    """Return the manifest of ``files``."""
    for name in files:
        _check_inside(Path(), name)
    entries = {name: FileEntry.of(data) for name, data in files.items()}
    return Manifest(files=entries, about=about or {})


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a folder; files are checked when they are read."""
    path = directory / MANIFEST_NAME
    try:
        data = read_file(path, limit=MAX_SIDE_FILE_BYTES)
    except UsageError as error:
        raise DamagedError(str(error)) from None
    try:
        fields = cast("dict[str, Any]", decode(data))
        changed = fields.pop("digest") != _digest(fields)
        manifest = None if changed else _parse(fields, path)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DamagedError(f"{path} is not a manifest") from None
    if manifest is None or manifest.to_json() != data:
        raise DamagedError(f"{path} was changed: its digest does not match")
    for name in manifest.files:
        _check_inside(directory, name)
    return manifest


def _parse(fields: Mapping[str, Any], path: Path) -> Manifest:
    # The digest covers all other fields in every version, so the version can be trusted.
    FORMAT.check(fields, path)
    if not isinstance(fields["about"], dict):
        raise TypeError("the manifest field 'about' must be a JSON object")
    listed = cast("dict[str, dict[str, Any]]", fields["files"])
    entries = {
        name: FileEntry(size=entry["size"], sha256=entry["sha256"])
        for name, entry in listed.items()
    }
    for entry in entries.values():
        if type(entry.size) is not int or entry.size < 0 or type(entry.sha256) is not str:
            raise TypeError("every file entry in the manifest needs a size and a digest")
    return Manifest(files=entries, about=fields["about"])


CHECKPOINTS_NAME = "checkpoints"
"""The folder of checkpoints inside the folder of a run."""
CHECKPOINT_SECONDS = 60.0
"""Default number of seconds between checkpoints; shorter runs write none."""
DEFAULT_KEEP = 2
"""Default number of checkpoints to keep: the newest, and one more in case it is damaged."""

Found = TypeVar("Found")

_STEP = re.compile(r"step-(\d{12})")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContents:
    """The contents of a file to write."""

    size: int
    blocks: Iterable[bytes | memoryview]
    """Blocks of bytes that make up the contents, generated on demand."""


def step_folder(directory: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return directory / f"step-{step:012d}"


def stored_steps(directory: Path) -> tuple[int, ...]:
    """Return the steps of the checkpoints in ``directory``, newest first, without validation."""
    if not directory.is_dir():
        return ()
    matches = (_STEP.fullmatch(path.name) for path in directory.iterdir())
    return tuple(sorted((int(match[1]) for match in matches if match), reverse=True))


def checkpoint_directory(directory: Path, step: int, size: int) -> AbstractContextManager[Path]:
    """Yield a temporary folder that becomes the checkpoint of a step when the block ends.

    Call ``write_checked`` for the files, ``write_manifest`` last, and ``keep_newest`` after the
    block. If the block fails, older checkpoints remain.
    """
    make_directory(directory)
    clean_leftovers(directory)
    return atomic_directory(step_folder(directory, step), size)


def write_checked(folder: Path, files: Mapping[str, FileContents]) -> dict[str, FileEntry]:
    """Write files into a new checkpoint, verify them by reading, and return their entries."""
    entries: dict[str, FileEntry] = {}
    for name, contents in files.items():
        digest = hashlib.sha256()
        blocks = _watched(contents.blocks, digest.update)
        write_new_file(folder / name, blocks, contents.size)
        entries[name] = FileEntry(size=contents.size, sha256=digest.hexdigest())
    Manifest(files=entries, about={}).check(folder)
    return entries


def _watched(
    blocks: Iterable[bytes | memoryview], watch: Callable[[bytes | memoryview], None]
) -> Iterator[bytes | memoryview]:
    for block in blocks:
        watch(block)
        yield block


def write_manifest(
    folder: Path, step: int, files: Mapping[str, FileEntry], about: Mapping[str, JsonValue]
) -> None:
    """Write the manifest of a checkpoint."""
    data = Manifest(files=files, about={**about, "step": step}).to_json()
    write_new_file(folder / MANIFEST_NAME, [data], len(data))


def keep_newest(directory: Path, keep: int = DEFAULT_KEEP) -> None:
    """Remove all checkpoints except the newest ``keep``; ``keep`` must be at least 1."""
    for step in stored_steps(directory)[keep:]:
        remove_dir(step_folder(directory, step))


def step_manifest(directory: Path, step: int) -> Manifest:
    """Return the manifest of a checkpoint."""
    path = step_folder(directory, step)
    manifest = read_manifest(path)
    if manifest.about.get("step") != step:
        raise DamagedError(f"expected step {step} in {path}, got {manifest.about.get('step')}")
    return manifest


def find_newest(
    directory: Path,
    steps: Iterable[int],
    *,
    read: Callable[[int], Found],
    report: Callable[[str], None],
) -> Found | None:
    """Return the newest valid checkpoint, or None if there are no checkpoints.

    ``steps`` are newest first. ``read`` raises ``DamagedError`` for a damaged checkpoint;
    ``report`` is called with a message for each damaged checkpoint.

    Raises:
        NoValidCheckpointError: if every checkpoint is damaged.
    """
    problems: list[str] = []
    for step in steps:
        try:
            return read(step)
        except (DamagedError, UnsafeError) as error:
            problems.append(str(error))
            report(f"checkpoint of step {step} is damaged: {error}")
    if problems:
        raise NoValidCheckpointError(f"every checkpoint in {directory} is damaged: {problems[0]}")
    return None


def quarantine_newer(directory: Path, step: int) -> None:
    """Quarantine all checkpoints newer than ``step``, because they could not be read."""
    newer = [step_folder(directory, one).name for one in stored_steps(directory) if one > step]
    if newer:
        quarantine(directory, newer)
