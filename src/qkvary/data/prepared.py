"""Reads a prepared set of documents, whose tokens on disk form one long sequence.

A set is a folder with a manifest. Each split has shards of three files: tokens (little-endian, 2 or
4 bytes each), the start of each document in the split (8 bytes), and the first 8 bytes of each
document's sha256. A document never crosses a shard border, and its last token is the separator.
Files are verified by sha256 before use. A large file is not verified again while its inode,
modification time and size stay the same.
"""

import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from qkvary.data.downloads import keep_in_cache
from qkvary.data.tokenizers import Tokenizer, make_tokenizer
from qkvary.storage.environment import cache_directory
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.journal import from_line
from qkvary.storage.jsonvalues import DocumentFormat, decode, encode
from qkvary.storage.manifest import MANIFEST_NAME, Manifest, read_manifest
from qkvary.storage.untrusted_files import StrPath, read_path

KIND = "prepared-documents"
FORMAT = DocumentFormat(name="a prepared set of documents", version=1, key="format")
TOKENIZER_FILE = "tokenizer.json"
PLAN_FILE = "plan.json"
"""The plan of a set that is not complete."""
BLOCKS_FILE = "blocks.json"
"""A file that version 0.2.0 wrote; not part of the fingerprint."""
SPLITS = ("train", "validation", "test")
REMEMBERED_BYTES = 2**26
"""Minimum size of a file whose successful check is remembered on disk. Others are checked again."""
_SETTLED_NANOSECONDS = 2_000_000_000
"""Minimum age of a file whose check is remembered. A younger file may still change unnoticed,
because its timestamp stays the same."""


def shard_files(split: str, number: int) -> tuple[str, str, str]:
    """Return the file names of a shard: tokens, document starts, document digests."""
    stem = f"{split}-{number:05d}"
    return f"{stem}.bin", f"{stem}.starts.bin", f"{stem}.digests.bin"


class TokenSplit:
    """The documents of one split, concatenated."""

    def __init__(self, folder: Path, name: str, about: Mapping[str, Any]) -> None:
        """Describe a split by the manifest of its set; files are opened on first use."""
        entry = about["splits"][name]
        tokens, documents = np.array(entry["shards"], dtype=np.int64).T
        self.tokens, self.documents = int(tokens.sum()), int(documents.sum())
        self.text_bytes: int = entry["text_bytes"]
        if (self.tokens, self.documents) != (entry["tokens"], entry["documents"]):
            raise ValueError(f"the counts of {name} do not match its shards")
        self._files = [
            [folder / file for file in shard_files(name, number)] for number in range(len(tokens))
        ]
        self.where = f"{folder.name} ({name})"
        """The set and the split, for error messages."""
        self._kind = np.dtype(f"<u{about['token_bytes']}")
        self._ends = np.cumsum(tokens)

    @cached_property
    def _parts(self) -> list[NDArray[Any]]:
        return [np.memmap(file, dtype=self._kind, mode="r") for file, *_ in self._files]

    @cached_property
    def document_starts(self) -> NDArray[np.int64]:
        """The position of the first token of each document, and the end of the split."""
        parts = [np.fromfile(file, dtype="<i8") for _, file, _ in self._files]
        found = np.append(np.concatenate(parts), self.tokens).astype(np.int64)
        found.flags.writeable = False
        return found

    def documents_of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the document index of each token. A separator belongs to the document it ends."""
        return np.searchsorted(self.document_starts, places, side="right") - 1

    def read(self, start: int, count: int) -> NDArray[np.int64]:
        """Return ``count`` tokens from position ``start``. They can lie in several shards."""
        return self.gather(np.array([start]), count)[0]

    def gather(self, starts: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Return one row of ``count`` tokens for each start, ``[len(starts), count]``."""
        places = np.asarray(starts, dtype=np.int64)
        if places.size and (places.min() < 0 or places.max() + count > self.tokens):
            raise ValueError(
                f"expected rows of {count:,} tokens within the {self.tokens:,} tokens of "
                f"{self.where}, got rows that begin at tokens {places.min():,} to {places.max():,}"
            )
        found = np.empty((places.size, count), dtype=np.int64)
        for row, start in zip(found, places.tolist(), strict=True):
            number, filled = int(np.searchsorted(self._ends, start, side="right")), 0
            while filled < count:
                part = self._parts[number]
                inside = start + filled - (int(self._ends[number]) - len(part))
                piece = part[inside : inside + count - filled]
                row[filled : filled + len(piece)] = piece
                filled += len(piece)
                number += 1
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """A verified prepared set."""

    path: Path
    """The folder of the set. The folder is not part of the set's identity."""
    fingerprint: str
    """The sha256 of all tokens, document starts and the tokenizer, independent of the folder."""
    tokenizer: Tokenizer
    splits: Mapping[str, TokenSplit]
    """``train``, ``validation`` and optionally ``test``."""
    about: Mapping[str, Any]
    """Further fields of the manifest: source, overlap and others."""

    @property
    def vocabulary(self) -> int:
        """The number of distinct tokens."""
        return self.tokenizer.vocabulary

    @property
    def separator(self) -> int:
        """The token after every document."""
        return cast("int", self.tokenizer.separator)

    @property
    def name(self) -> str:
        """The name of the set."""
        return str(self.about["name"])

    def find_split(self, name: str) -> tuple[str, TokenSplit]:
        """Return a split and its name.

        If there is no test split, the name ``test`` gives the validation split.
        """
        if name == "test" and name not in self.splits:
            name = "validation"
        if name not in self.splits:
            raise UsageError(
                f"expected a data set with a split {name}, got {self.path} with "
                f"{', '.join(self.splits)}"
            )
        return name, self.splits[name]


def is_prepared(path: Path) -> bool:
    """Return whether a folder looks like a complete set, without verifying it."""
    return (path / MANIFEST_NAME).is_file() and (path / TOKENIZER_FILE).is_file()


def stored_plan(folder: Path) -> Any:
    """Return the plan of the data set in a folder, or ``None``; the set may be incomplete."""
    if (folder / MANIFEST_NAME).is_file():
        return read_manifest(folder).about.get("plan")
    path = folder / PLAN_FILE
    return read_record(path) if path.is_file() else None


def read_record(path: Path) -> dict[str, Any]:
    """Return the contents of a file that a preparation wrote, one line with a digest."""
    try:
        return from_line(path.read_bytes().removesuffix(b"\n"))
    except ValueError:
        raise changed_error(path) from None


def changed_error(path: Path) -> DamagedError:
    """Return the error for a file of an unfinished preparation that was changed."""
    return DamagedError(f"{path} was changed; remove the folder, then prepare the data set again")


def read_fingerprint(path: Path) -> str:
    """Return the recorded fingerprint of a set without verifying its files."""
    found = read_manifest(path).about.get("fingerprint")
    if not isinstance(found, str):
        raise DamagedError(f"expected a prepared set of documents in {path}, got something else")
    return found


def open_prepared(
    path: StrPath,
    *,
    verify: bool = True,
    tokenizer: Tokenizer | None = None,
    manifest: Manifest | None = None,
) -> PreparedData:
    """Open a set and verify every file that changed since its last verification.

    Without ``verify``, only the sizes of files are compared, not their sha256. ``manifest`` is the
    manifest of the set, if the caller has read it already.
    """
    path = read_path(path, "the path of a prepared set")
    if not path.is_dir():
        raise UsageError(
            f"expected a folder of prepared documents, got {path}, which does not exist"
        )
    if (path / PLAN_FILE).exists() and not (path / MANIFEST_NAME).is_file():
        raise UsageError(
            f"{path} is not finished: run the same `qkvary data prepare` again to resume it"
        )
    if not (path / MANIFEST_NAME).is_file():
        raise UsageError(
            f"expected prepared documents in {path}, got a folder without a {MANIFEST_NAME}"
        )
    manifest = manifest or read_manifest(path)
    about = cast("dict[str, Any]", manifest.about)
    if about.get("kind") != KIND:
        raise UsageError(f"expected a prepared set of documents in {path}, got something else")
    FORMAT.check(about, path)
    for name in manifest.files:
        _verify(manifest, path, name, by_digest=verify)
    try:
        return _assemble(path, manifest, about, tokenizer)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise DamagedError(f"{path} is inconsistent: {error}") from None


def _assemble(
    path: Path, manifest: Manifest, about: Mapping[str, Any], tokenizer: Tokenizer | None
) -> PreparedData:
    if tokenizer is None:
        data = manifest.read(path, TOKENIZER_FILE)
        tokenizer = make_tokenizer(cast("dict[str, Any]", decode(data)))
    if tokenizer.separator is None:
        raise ValueError("its tokenizer has no separator")
    splits = {name: TokenSplit(path, name, about) for name in SPLITS if name in about["splits"]}
    if fingerprint_of(manifest, about) != about["fingerprint"]:
        raise ValueError("its fingerprint does not match")
    return PreparedData(
        path=path,
        fingerprint=about["fingerprint"],
        tokenizer=tokenizer,
        splits=MappingProxyType(splits),
        about=about,
    )


def fingerprint_of(manifest: Manifest, about: Mapping[str, Any]) -> str:
    """Return the sha256 of the contents of a set."""
    content = {
        "format": about["format"],
        "splits": about["splits"],
        "token_bytes": about["token_bytes"],
        "files": {
            name: entry.sha256 for name, entry in manifest.files.items() if name != BLOCKS_FILE
        },
    }
    return hashlib.sha256(encode(content).encode()).hexdigest()


def _verify(manifest: Manifest, folder: Path, name: str, *, by_digest: bool) -> None:
    """Compare a file with its entry in a manifest; the size is always compared."""
    path, entry = folder / name, manifest.files[name]
    found, now = manifest.check_size(folder, name), time.time_ns()
    mark = [found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size]
    known = encode({"mark": mark, "sha256": entry.sha256}).encode()
    cache = cache_directory() if entry.size >= REMEMBERED_BYTES else None
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    memory, remembered = cache / "checked" / f"{digest}.json" if cache else None, b""
    with suppress(OSError):
        remembered = memory.read_bytes() if memory else b""
    if not by_digest or remembered == known:
        return
    manifest.check_file(folder, name)
    if memory and now - max(found.st_mtime_ns, found.st_ctime_ns) > _SETTLED_NANOSECONDS:
        # Without a writable cache, files are only checked more often.
        keep_in_cache(memory, known)
