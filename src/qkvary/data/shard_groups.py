"""A set during preparation, on disk: groups of shards, each written completely or not at all.

A group has one shard for each split that received documents, and a record, written last, of the
position in the source. Group boundaries depend only on the source, so that an interrupted
preparation gives the same bytes as an uninterrupted one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from qkvary.storage.durable import atomic_write_file, remove_file
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.journal import from_line, to_line
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.locks import OwnerLock
from qkvary.storage.manifest import MANIFEST_NAME, FileEntry, Manifest

LOCK_FILE = "prepare.lock"
PLAN_FILE = "plan.json"
_OWN_FILES = re.compile(
    rf"{re.escape(LOCK_FILE)}|{re.escape(PLAN_FILE)}|portion-\d+\.json|\.tmp-.*"
    rf"|{re.escape(TOKENIZER_FILE)}|{re.escape(BLOCKS_FILE)}|{re.escape(MANIFEST_NAME)}"
    rf"|(?:{'|'.join(SPLITS)})-\d+(?:\.starts|\.digests)?\.bin"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardGroup:
    """The record of one group, with all that is needed to resume after it."""

    stream: int
    """The index of the stream in the source."""
    position: JsonValue
    """The position in the stream after the last document of the group."""
    ended: bool
    """Whether the stream ends with this group."""
    stream_tokens: int
    """Training tokens of the stream up to the end of this group."""
    shards: Mapping[str, tuple[int, int, int]]
    """Tokens, documents and UTF-8 bytes of each split that got documents."""
    files: Mapping[str, FileEntry]
    """The files of the group."""

    def to_bytes(self) -> bytes:
        """Return the record with a checksum."""
        return to_line(
            {
                "stream": self.stream,
                "position": self.position,
                "ended": self.ended,
                "stream_tokens": self.stream_tokens,
                "shards": {name: list(counts) for name, counts in self.shards.items()},
                "files": {name: [one.size, one.sha256] for name, one in self.files.items()},
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "ShardGroup":
        """Read a record.

        Raises:
            ValueError: if it was changed.
        """
        fields = from_line(data.removesuffix(b"\n"))
        # Older versions stored digests of blocks as well.
        fields.pop("blocks", None)
        fields["shards"] = {name: tuple(counts) for name, counts in fields["shards"].items()}
        fields["files"] = {
            name: FileEntry(size=size, sha256=sha256)
            for name, (size, sha256) in fields["files"].items()
        }
        return cls(**fields)


@dataclass(slots=True)
class PendingGroup:
    """Documents of an incomplete group, by split."""

    documents: dict[str, list[EncodedDocument]] = field(
        default_factory=dict[str, list[EncodedDocument]]
    )
    """The documents of each split, in order."""

    def add(self, split: str, document: EncodedDocument) -> None:
        """Add a document."""
        self.documents.setdefault(split, []).append(document)


def unfinished_plan(folder: Path) -> Any:
    """Return the plan of the unfinished preparation in a folder, or ``None``."""
    path = folder / PLAN_FILE
    if not path.is_file():
        return None
    try:
        return from_line(path.read_bytes().removesuffix(b"\n"))
    except ValueError:
        raise DamagedError(f"{path} was changed; remove the folder to prepare it again") from None


class PreparationDirectory:
    """The folder of a set during preparation, locked by one process."""

    def __init__(self, folder: Path) -> None:
        """Lock the folder, which must exist.

        Raises:
            UsageError: if it holds other files.
            BusyError: if another process prepares there.
        """
        self.folder = folder
        foreign = sorted(
            path.name for path in folder.iterdir() if not _OWN_FILES.fullmatch(path.name)
        )
        if foreign:
            raise UsageError(
                f"expected an empty folder for the prepared set, got {folder} with {foreign[0]}"
            )
        self._lock = OwnerLock(folder / LOCK_FILE)
        self.groups: list[ShardGroup] = []

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def begin(self, plan: Mapping[str, JsonValue]) -> None:
        """Write the plan, before any other file."""
        atomic_write_file(self.folder / PLAN_FILE, to_line(plan))

    def load(self) -> None:
        """Load the records of existing groups.

        Raises:
            DamagedError: if a group was changed.
        """
        self.groups = []
        while (path := self._record(len(self.groups))).is_file():
            try:
                group = ShardGroup.from_bytes(path.read_bytes())
            except (ValueError, TypeError, KeyError, AttributeError):
                raise DamagedError(
                    f"{path} was changed; remove the folder to prepare it again"
                ) from None
            for name, entry in group.files.items():
                file = self.folder / name
                if not file.is_file() or FileEntry.of(file.read_bytes()) != entry:
                    raise DamagedError(f"{file} was changed; remove the folder to prepare it again")
            self.groups.append(group)

    def _record(self, number: int) -> Path:
        return self.folder / f"portion-{number:05d}.json"

    def count(self, split: str, what: int) -> int:
        """Return the tokens (0), documents (1) or bytes (2) of a split over all groups so far."""
        return sum(one.shards[split][what] for one in self.groups if split in one.shards)

    def add(
        self,
        pending: PendingGroup,
        *,
        stream: int,
        position: JsonValue,
        ended: bool,
        stream_tokens: int,
    ) -> ShardGroup:
        """Write one group: its shards, then its record.

        Raises:
            ResourceError: if the disk is full, broken or not writable.
        """
        files: dict[str, FileEntry] = {}
        shards: dict[str, tuple[int, int, int]] = {}
        for split, documents in pending.documents.items():
            number = sum(split in one.shards for one in self.groups)
            contents, shards[split] = _pack(documents, self.count(split, 0))
            for name, data in zip(shard_files(split, number), contents, strict=True):
                atomic_write_file(self.folder / name, data)
                files[name] = FileEntry.of(data)
        group = ShardGroup(
            stream=stream,
            position=position,
            ended=ended,
            stream_tokens=stream_tokens,
            shards=shards,
            files=files,
        )
        atomic_write_file(self._record(len(self.groups)), group.to_bytes())
        self.groups.append(group)
        return group

    def count_overlap(self) -> dict[str, JsonValue]:
        """Count documents of a split that are in another split too, and repeated documents.

        Documents are equal if their stripped texts agree in the first 64 bits of the sha256.
        """
        digests: dict[str, NDArray[np.uint64]] = {}
        for split in filter(lambda split: self.count(split, 1), SPLITS):
            shards = sum(split in group.shards for group in self.groups)
            files = (self.folder / shard_files(split, number)[2] for number in range(shards))
            digests[split] = np.concatenate([np.fromfile(path, dtype="<u8") for path in files])
        shared: dict[str, JsonValue] = {}
        for first, second in combinations(digests, 2):
            found = np.isin(digests[second], digests[first])
            shared[f"{second} in {first}"] = int(found.sum())
        repeated: dict[str, JsonValue] = {
            name: int(found.size - np.unique(found).size) for name, found in digests.items()
        }
        return {"shared_documents": shared, "repeated_documents": repeated}

    def finish(self, about: Mapping[str, JsonValue], tokenizer: bytes) -> None:
        """Write the tokenizer and then the manifest, which completes the set.

        Args:
            about: Further fields of the manifest.
            tokenizer: The description of the tokenizer.

        Raises:
            ResourceError: if the disk is full, broken or not writable.
        """
        files = {name: one for group in self.groups for name, one in group.files.items()}
        atomic_write_file(self.folder / TOKENIZER_FILE, tokenizer)
        files[TOKENIZER_FILE] = FileEntry.of(tokenizer)
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
        found = [one.shards[split] for one in self.groups if split in one.shards]
        return {
            "tokens": self.count(split, 0),
            "documents": self.count(split, 1),
            "text_bytes": self.count(split, 2),
            "shards": [list(counts[:2]) for counts in found],
        }

    def clear(self) -> None:
        """Remove the records of a complete set."""
        for path in sorted(self.folder.glob("portion-*.json")):
            remove_file(path)
        remove_file(self.folder / PLAN_FILE)


def _pack(
    documents: Sequence[EncodedDocument], start: int
) -> tuple[tuple[bytes, bytes, bytes], tuple[int, int, int]]:
    """Return the three files of a shard and its counts; it begins at token ``start``."""
    lengths = np.array([len(document.tokens) for document in documents], dtype=np.int64)
    starts = start + np.cumsum(lengths) - lengths
    digests = np.array([document.digest for document in documents], dtype="<u8")
    tokens = np.concatenate([document.tokens for document in documents])
    contents = (tokens.tobytes(), starts.astype("<i8").tobytes(), digests.tobytes())
    text_bytes = sum(document.text_bytes for document in documents)
    return contents, (len(tokens), len(documents), text_bytes)
