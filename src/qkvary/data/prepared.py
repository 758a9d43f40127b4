"""A prepared set of documents: tokens on the disk, read as if they were one long row of numbers.

A set is a folder with a manifest. For each split there are shards, each of which is three files:
tokens (little-endian, 2 or 4 bytes each), where each document starts in the split (8 bytes), and
the first 8 bytes of each document's sha256. A document is never cut by the end of a shard, and
its last token is the separator. Nothing is believed before its sha256 was compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from qkvary.data.tokenizers import Tokenizer, make_tokenizer
from qkvary.data.verification import verify_file
from qkvary.storage.documents import DocumentFormat
from qkvary.storage.errors import DamagedError, UsageError
from qkvary.storage.jsonvalues import decode, encode
from qkvary.storage.manifest import MANIFEST_NAME, Manifest, read_manifest

KIND = "prepared-documents"
FORMAT = DocumentFormat(name="a prepared set of documents", version=1, key="format")
TOKENIZER_FILE = "tokenizer.json"
BLOCKS_FILE = "blocks.json"
"""Digests of the pieces of large files: only to say where a damage is."""
SPLITS = ("train", "validation", "test")
_TOKENS, _STARTS, _DIGESTS = ".bin", ".starts.bin", ".digests.bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One stretch of a split."""

    path: Path
    """Of the tokens."""
    tokens: int
    """How many, separators included."""
    documents: int
    """How many."""


def shard_files(split: str, number: int) -> tuple[str, str, str]:
    """The names of a shard's files: tokens, starts of documents, digests of documents."""
    stem = f"{split}-{number:05d}"
    return stem + _TOKENS, stem + _STARTS, stem + _DIGESTS


class TokenSplit:
    """The documents of one split, one after the other."""

    def __init__(
        self, shards: tuple[Shard, ...], *, text_bytes: int, token_bytes: int, where: str
    ) -> None:
        """Open the files; nothing is read yet.

        Args:
            shards: In order.
            text_bytes: UTF-8 bytes of all documents.
            token_bytes: Bytes of a stored token.
            where: What the split is called in messages.
        """
        self.tokens = sum(shard.tokens for shard in shards)
        self.documents = sum(shard.documents for shard in shards)
        self.text_bytes = text_bytes
        self._shards, self._where = shards, where
        self._kind = np.dtype(f"<u{token_bytes}")
        self._ends = np.cumsum([shard.tokens for shard in shards], dtype=np.int64)

    @cached_property
    def _parts(self) -> list[NDArray[Any]]:
        return [np.memmap(shard.path, dtype=self._kind, mode="r") for shard in self._shards]

    @cached_property
    def document_starts(self) -> NDArray[np.int64]:
        """Where each document begins, and at last where the split ends."""
        parts = [self._column(shard, _STARTS, "<i8") for shard in self._shards]
        end = np.array([self.tokens], dtype=np.int64)
        found = np.concatenate([*parts, end]).astype(np.int64)
        found.flags.writeable = False
        return found

    @cached_property
    def document_digests(self) -> NDArray[np.uint64]:
        """The first 8 bytes of the sha256 of each document's text, without spaces at its ends."""
        parts = [self._column(shard, _DIGESTS, "<u8") for shard in self._shards]
        return np.concatenate([*parts, np.empty(0, dtype=np.uint64)]).astype(np.uint64)

    def _column(self, shard: Shard, ending: str, kind: str) -> NDArray[Any]:
        path = shard.path.with_name(shard.path.name.removesuffix(_TOKENS) + ending)
        return np.fromfile(path, dtype=kind)

    def read(self, start: int, count: int) -> NDArray[np.int64]:
        """Tokens from ``start`` on, across shards, ``[count]``.

        Raises:
            ValueError: if they are not all there.
        """
        if start < 0 or count < 0 or start + count > self.tokens:
            raise ValueError(
                f"expected tokens among the {self.tokens:,} of {self._where}, got {count:,} from "
                f"{start:,} on"
            )
        found = np.empty(count, dtype=np.int64)
        self._copy(start, found)
        return found

    def gather(self, starts: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Rows of ``count`` tokens each from the places ``starts`` on, ``[len(starts), count]``.

        Raises:
            ValueError: if they are not all there.
        """
        places = np.asarray(starts, dtype=np.int64)
        if places.size and (places.min() < 0 or places.max() + count > self.tokens):
            raise ValueError(
                f"expected rows of {count:,} among the {self.tokens:,} tokens of {self._where}, "
                f"got some from {places.min():,} to {places.max():,}"
            )
        found = np.empty((places.size, count), dtype=np.int64)
        for row, start in zip(found, places.tolist(), strict=True):
            self._copy(start, row)
        return found

    def _copy(self, start: int, found: NDArray[np.int64]) -> None:
        number = int(np.searchsorted(self._ends, start, side="right"))
        filled, count = 0, len(found)
        while filled < count:
            part = self._parts[number]
            inside = start + filled - (int(self._ends[number]) - len(part))
            piece = part[inside : inside + count - filled]
            found[filled : filled + len(piece)] = piece
            filled += len(piece)
            number += 1

    def blocks(self, size: int = 2**20) -> Iterator[NDArray[np.int64]]:
        """All tokens in order, a block at a time."""
        for start in range(0, self.tokens, size):
            yield self.read(start, min(size, self.tokens - start))


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """A prepared set, checked."""

    path: Path
    """Where it is; not a part of what it is."""
    fingerprint: str
    """Sha256 of all tokens, document starts and the tokenizer; the same wherever the folder is."""
    tokenizer: Tokenizer
    """What turned the text into these tokens."""
    splits: Mapping[str, TokenSplit]
    """``train``, ``validation`` and perhaps ``test``."""
    about: Mapping[str, Any]
    """What the one who prepared it noted: source, overlap, and so on."""

    @property
    def vocabulary(self) -> int:
        """Distinct tokens."""
        return self.tokenizer.vocabulary

    @property
    def separator(self) -> int:
        """The token behind every document."""
        return cast("int", self.tokenizer.separator)

    @property
    def name(self) -> str:
        """What people call it."""
        return str(self.about["name"])


def is_prepared(path: Path) -> bool:
    """Whether a finished set seems to stand at ``path``; it is not checked."""
    return (path / MANIFEST_NAME).is_file() and (path / TOKENIZER_FILE).is_file()


def read_fingerprint(path: Path) -> str:
    """What a set says that it is; no file of it is compared.

    Raises:
        DamagedError: if its manifest is missing or changed, or is that of something else.
    """
    found = read_manifest(path).about.get("fingerprint")
    if not isinstance(found, str):
        raise DamagedError(f"expected a prepared set of documents in {path}, got something else")
    return found


def open_prepared(
    path: Path, *, verify: bool = True, tokenizer: Tokenizer | None = None
) -> PreparedData:
    """Open a set: every file is compared with the manifest, once for as long as it is unchanged.

    Args:
        path: The folder.
        verify: Whether the sha256 of files is compared; sizes always are.
        tokenizer: That of the set, for a caller who has it already: it takes a moment to make.

    Raises:
        UsageError: if there is no such folder, or preparing was not finished.
        DamagedError: if a file is missing or changed; the message names it, and where.
        NewerFormatError: if a newer qkvary wrote it.
        UnsafeError: if the manifest names a file outside of the folder.
    """
    if not (path / MANIFEST_NAME).is_file():
        raise UsageError(_explain_missing(path))
    manifest = read_manifest(path)
    about = cast("dict[str, Any]", manifest.about)
    if about.get("kind") != KIND:
        raise UsageError(f"expected a prepared set of documents in {path}, got something else")
    FORMAT.check(about, path)
    for name in manifest.files:
        verify_file(path, name, manifest, blocks=BLOCKS_FILE, by_digest=verify)
    try:
        return _assemble(path, manifest, about, tokenizer)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{path} does not fit together: {error}") from None


def _explain_missing(path: Path) -> str:
    if not path.is_dir():
        return f"expected a folder of prepared documents, got {path}, which does not exist"
    if any(path.glob("portion-*.json")) or (path / "plan.json").exists():
        return (
            f"{path} is not finished: the same `qkvary data prepare` goes on where it was stopped"
        )
    return f"expected prepared documents in {path}, got a folder without a {MANIFEST_NAME}"


def _assemble(
    path: Path, manifest: Manifest, about: Mapping[str, Any], tokenizer: Tokenizer | None
) -> PreparedData:
    if tokenizer is None:
        data = manifest.read(path, TOKENIZER_FILE)
        tokenizer = make_tokenizer(cast("dict[str, Any]", decode(data)))
    if tokenizer.separator is None:
        raise ValueError("its tokenizer has no separator")
    splits: dict[str, TokenSplit] = {}
    for name in SPLITS:
        if name in about["splits"]:
            splits[name] = _open_split(path, name, manifest, about)
    if fingerprint_of(manifest, about) != about["fingerprint"]:
        raise ValueError("its fingerprint is another one")
    return PreparedData(
        path=path,
        fingerprint=about["fingerprint"],
        tokenizer=tokenizer,
        splits=MappingProxyType(splits),
        about=about,
    )


def _open_split(path: Path, name: str, manifest: Manifest, about: Mapping[str, Any]) -> TokenSplit:
    entry, width = about["splits"][name], int(about["token_bytes"])
    shards: list[Shard] = []
    for number, (tokens, documents) in enumerate(entry["shards"]):
        sizes = (width * tokens, 8 * documents, 8 * documents)
        for file, size in zip(shard_files(name, number), sizes, strict=True):
            if manifest.files[file].size != size:
                raise ValueError(f"{file} should have {size:,} bytes")
        file = shard_files(name, number)[0]
        shards.append(Shard(path=path / file, tokens=tokens, documents=documents))
    split = TokenSplit(
        tuple(shards),
        text_bytes=entry["text_bytes"],
        token_bytes=width,
        where=f"{path.name} ({name})",
    )
    if (split.tokens, split.documents) != (entry["tokens"], entry["documents"]):
        raise ValueError(f"the counts of {name} are not those of its shards")
    return split


def fingerprint_of(manifest: Manifest, about: Mapping[str, Any]) -> str:
    """Sha256 of what a set is made of."""
    content = {
        "format": about["format"],
        "splits": about["splits"],
        "token_bytes": about["token_bytes"],
        "files": {
            name: entry.sha256 for name, entry in manifest.files.items() if name != BLOCKS_FILE
        },
    }
    return hashlib.sha256(encode(content).encode()).hexdigest()
