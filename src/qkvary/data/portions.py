"""A set that is being prepared, on the disk: portions, each of which is there in whole or not.

A portion is one shard for each split that got documents, and a record, written last, of where in
the source it ends. Portions end where the source says, not where somebody was interrupted, so a
set that was killed a hundred times is byte for byte the one that was not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qkvary.data.encoding import EncodedDocument
from qkvary.data.prepared import (
    BLOCKS_FILE,
    FORMAT,
    KIND,
    SPLITS,
    TOKENIZER_FILE,
    fingerprint_of,
    shard_files,
)
from qkvary.data.verification import block_digests
from qkvary.storage.durable import atomic_write_file, remove_file
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.journal import from_line, to_line
from qkvary.storage.jsonvalues import JsonValue, encode
from qkvary.storage.locks import OwnerLock
from qkvary.storage.manifest import MANIFEST_NAME, FileEntry, Manifest, read_manifest

LOCK_FILE = "prepare.lock"
PLAN_FILE = "plan.json"
_OURS = re.compile(
    rf"{re.escape(LOCK_FILE)}|{re.escape(PLAN_FILE)}|portion-\d+\.json|\.tmp-.*"
    rf"|{re.escape(TOKENIZER_FILE)}|{re.escape(BLOCKS_FILE)}|{re.escape(MANIFEST_NAME)}"
    rf"|(?:{'|'.join(SPLITS)})-\d+(?:\.starts|\.digests)?\.bin"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """The record of one portion, and all that has to be known to go on behind it."""

    stream: int
    """Which stream of the source it belongs to."""
    position: JsonValue
    """Where in the stream it ends."""
    ended: bool
    """Whether that was the end of the stream."""
    stream_tokens: int
    """Tokens of the stream for training up to here."""
    shards: Mapping[str, tuple[int, int, int]]
    """For each split that got documents: tokens, documents, UTF-8 bytes."""
    files: Mapping[str, FileEntry]
    """What was written."""
    blocks: Mapping[str, Sequence[str]]
    """Digests of the blocks of the files."""

    def to_bytes(self) -> bytes:
        """The bytes of its record, with a check."""
        return to_line(
            {
                "stream": self.stream,
                "position": self.position,
                "ended": self.ended,
                "stream_tokens": self.stream_tokens,
                "shards": {name: list(counts) for name, counts in self.shards.items()},
                "files": {name: [one.size, one.sha256] for name, one in self.files.items()},
                "blocks": dict(self.blocks),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Portion:
        """Read a record.

        Raises:
            ValueError: if it was changed.
        """
        fields = from_line(data.removesuffix(b"\n"))
        fields["shards"] = {name: tuple(counts) for name, counts in fields["shards"].items()}
        fields["files"] = {
            name: FileEntry(size=size, sha256=sha256)
            for name, (size, sha256) in fields["files"].items()
        }
        return cls(**fields)


@dataclass(slots=True)
class Gathered:
    """Documents of a portion that is not complete, by split."""

    documents: dict[str, list[EncodedDocument]] = field(
        default_factory=dict[str, list[EncodedDocument]]
    )
    """In order."""

    def add(self, split: str, document: EncodedDocument) -> None:
        """Take one more."""
        self.documents.setdefault(split, []).append(document)


def finished_plan(folder: Path) -> Any:
    """The plan of the set that stands in a folder complete, or ``None``."""
    if not (folder / MANIFEST_NAME).is_file():
        return None
    return read_manifest(folder).about.get("plan")


def begun_plan(folder: Path) -> Any:
    """The plan of what was begun in a folder, or ``None``."""
    path = folder / PLAN_FILE
    if not path.is_file():
        return None
    try:
        return from_line(path.read_bytes().removesuffix(b"\n"))
    except ValueError:
        raise DamagedError(f"{path} was changed; remove the folder to prepare it again") from None


class Workplace:
    """The folder of a set that is being prepared, in the hands of one process."""

    def __init__(self, folder: Path) -> None:
        """Take hold of the folder, which must exist.

        Raises:
            UsageError: if something else is in it.
            BusyError: if somebody else prepares there.
        """
        self.folder = folder
        foreign = sorted(path.name for path in folder.iterdir() if not _OURS.fullmatch(path.name))
        if foreign:
            raise UsageError(
                f"expected an empty folder for the prepared set, got {folder} with {foreign[0]}"
            )
        self._lock = OwnerLock(folder / LOCK_FILE)
        self.portions: list[Portion] = []

    def release(self) -> None:
        """Let others have it."""
        self._lock.release()

    def begin(self, plan: Mapping[str, JsonValue]) -> None:
        """Note what is prepared, before anything of it is written."""
        atomic_write_file(self.folder / PLAN_FILE, to_line(plan))

    def load(self) -> None:
        """Find the portions that are there.

        Raises:
            DamagedError: if one was changed.
        """
        self.portions = []
        while (path := self._record(len(self.portions))).is_file():
            try:
                portion = Portion.from_bytes(path.read_bytes())
            except (ValueError, TypeError, KeyError, AttributeError):
                raise DamagedError(
                    f"{path} was changed; remove the folder to prepare it again"
                ) from None
            for name, entry in portion.files.items():
                file = self.folder / name
                if not file.is_file() or FileEntry.of(file.read_bytes()) != entry:
                    raise DamagedError(
                        f"{file} is not what was written; remove the folder to prepare it again"
                    )
            self.portions.append(portion)

    def _record(self, number: int) -> Path:
        return self.folder / f"portion-{number:05d}.json"

    def count(self, split: str, what: int) -> int:
        """Tokens (0), documents (1) or bytes (2) of a split in all portions so far."""
        return sum(one.shards[split][what] for one in self.portions if split in one.shards)

    def add(
        self,
        gathered: Gathered,
        *,
        stream: int,
        position: JsonValue,
        ended: bool,
        stream_tokens: int,
    ) -> Portion:
        """Write one portion: its shards, then its record.

        Raises:
            ResourceError: if the disk is full, broken or not writable.
        """
        files: dict[str, FileEntry] = {}
        blocks: dict[str, Sequence[str]] = {}
        shards: dict[str, tuple[int, int, int]] = {}
        for split, documents in gathered.documents.items():
            number = sum(split in one.shards for one in self.portions)
            contents, shards[split] = _pack(documents, self.count(split, 0))
            for name, data in zip(shard_files(split, number), contents, strict=True):
                atomic_write_file(self.folder / name, data)
                files[name], blocks[name] = FileEntry.of(data), block_digests(data)
        portion = Portion(
            stream=stream,
            position=position,
            ended=ended,
            stream_tokens=stream_tokens,
            shards=shards,
            files=files,
            blocks=blocks,
        )
        atomic_write_file(self._record(len(self.portions)), portion.to_bytes())
        self.portions.append(portion)
        return portion

    def finish(self, about: Mapping[str, JsonValue], tokenizer: bytes) -> None:
        """Write the tokenizer and the manifest: from now on the set exists.

        Args:
            about: What the manifest says beside its list.
            tokenizer: The description of what made the tokens.

        Raises:
            ResourceError: if the disk is full, broken or not writable.
        """
        files = {name: one for portion in self.portions for name, one in portion.files.items()}
        blocks = {name: one for portion in self.portions for name, one in portion.blocks.items()}
        listed = (encode(blocks) + "\n").encode()
        atomic_write_file(self.folder / BLOCKS_FILE, listed)
        atomic_write_file(self.folder / TOKENIZER_FILE, tokenizer)
        files |= {BLOCKS_FILE: FileEntry.of(listed), TOKENIZER_FILE: FileEntry.of(tokenizer)}
        whole: dict[str, JsonValue] = {
            **about,
            "kind": KIND,
            **FORMAT.version_field,
            "splits": {name: self._counts(name) for name in SPLITS if self.count(name, 1)},
        }
        manifest = Manifest(files=files, about=whole)
        whole["fingerprint"] = fingerprint_of(manifest, whole)
        atomic_write_file(self.folder / MANIFEST_NAME, manifest.to_json())

    def _counts(self, split: str) -> JsonValue:
        found = [one.shards[split] for one in self.portions if split in one.shards]
        return {
            "tokens": self.count(split, 0),
            "documents": self.count(split, 1),
            "text_bytes": self.count(split, 2),
            "shards": [list(counts[:2]) for counts in found],
        }

    def clear(self) -> None:
        """Remove the notes of a set that is complete."""
        for path in sorted(self.folder.glob("portion-*.json")):
            remove_file(path)
        remove_file(self.folder / PLAN_FILE)


def _pack(
    documents: Sequence[EncodedDocument], start: int
) -> tuple[tuple[bytes, bytes, bytes], tuple[int, int, int]]:
    """The three files of a shard that begins at token ``start`` of its split, and its counts."""
    lengths = np.array([len(document.tokens) for document in documents], dtype=np.int64)
    starts = start + np.cumsum(lengths) - lengths
    digests = np.array([document.digest for document in documents], dtype="<u8")
    tokens = np.concatenate([document.tokens for document in documents])
    contents = (tokens.tobytes(), starts.astype("<i8").tobytes(), digests.tobytes())
    text_bytes = sum(document.text_bytes for document in documents)
    return contents, (len(tokens), len(documents), text_bytes)
