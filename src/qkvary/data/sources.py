"""What is prepared: streams of documents, and which split each goes to.

A source comes split (folders or files named train, validation, test), or one file is named for
validation, or a share of the documents is held out by a rule: of train alone, where there is one
beside test. A text that is one document is cut once, by position.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from qkvary.data import documents as reading
from qkvary.data.documents import KINDS, Document, DocumentSource, FileDocuments, TextPart, kind_of
from qkvary.data.encoding import digest_of
from qkvary.data.splits import FAR, FEW, HeldOut, hold_out, miss_of
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import JsonValue

CUTS = (1, 64, 4096)
"""Documents that each section of a long text is cut into, until the share that is held out is met:
64 MiB, 1 MiB, 16 KiB each."""
SHARE = 0.05
"""Held out where nobody says otherwise."""
EXACT_BYTES = 2**26
"""Up to so many bytes together, files are told apart by what is in them."""
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "valid": "validation",
    "validation": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
"""What folders and files of a corpus that comes split are called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Documents that are read one after the other."""

    documents: DocumentSource
    """The documents."""
    split: str | None
    """Where they go; ``None`` leaves each to the source's rule."""
    max_tokens: int | None = None
    """Stop behind the document that reaches so many tokens (of train, where a rule decides)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Everything that goes into one set."""

    name: str
    """What people call it."""
    streams: Sequence[Stream]
    """In order."""
    rule: HeldOut | None = None
    """Which documents are held out, where a stream does not say."""
    total_bytes: int | None = None
    """Bytes to be read, where that is known."""
    files: JsonValue = field(default=None)
    """What is read, as the manifest has it."""
    pin: Callable[[str | None], Source] | None = None
    """Where what is read may change: gives the same source at a commit, or at that of today."""

    def split_of(self, digest: int) -> str:
        """The split of a document that no stream decides about."""
        return "train" if self.rule is None else self.rule.split_of(digest)

    def describe(self) -> dict[str, JsonValue]:
        """What it is, for the plan and the manifest; without any place of this machine."""
        return {
            "name": self.name,
            "files": self.files,
            "held_out": None if self.rule is None else self.rule.describe(),
            "streams": [
                {"split": stream.split, "max_tokens": stream.max_tokens} for stream in self.streams
            ],
        }

    def documents(self) -> Iterator[Document]:
        """All documents, for whoever has to see them before any is encoded."""
        for stream in self.streams:
            yield from stream.documents.read()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a person may say about a source."""

    name: str | None = None
    """What to call it; by default as its file or folder."""
    field: str = "text"
    """Which entry of a line or row is the text."""
    validation: Path | None = None
    """A file or folder for validation."""
    held_out: float | None = None
    """The share of the documents for validation, where none are named; 0.05 by default."""
    max_tokens: int | None = None
    """Tokens for training, at most one document more."""


def find_source(path: Path, choices: Choices | None = None) -> Source:
    """The documents of a file or folder.

    Raises:
        UsageError: if there are none, or the choices do not fit.
    """
    chosen = choices or Choices()
    if chosen.max_tokens is not None and chosen.max_tokens < 1:
        raise UsageError(f"expected at least one token, got {chosen.max_tokens}")
    name = chosen.name or name_path(path)
    parts = _find_parts(path, chosen)
    listed = _list_parts(path, parts)
    files = [file for some in parts.values() for file in some]
    packed = any(file.suffix.lower() == ".gz" or kind_of(file) == "parquet" for file in files)
    total = None if packed else sum(file.stat().st_size for file in files)
    rule, cuts = None, 1
    if None in parts:
        share = SHARE if chosen.held_out is None else chosen.held_out
        if not 0.0 < share < 1.0:
            raise UsageError(f"expected a share between 0 and 1 to hold out, got {share}")
        rule, cuts = _find_rule(parts[None], chosen.field, share)
        if rule is None:
            texts = parts.pop(None)
            cut = _cut_by_position(name, texts, share, listed, total, chosen.max_tokens)
            return replace(cut, streams=[*cut.streams, *_streams(parts, chosen)])
    if cuts > 1:
        # Who goes on with a set must cut it in the same places.
        listed["cuts"] = cuts
    streams = _streams(parts, chosen, cuts)
    return Source(name=name, streams=streams, rule=rule, total_bytes=total, files=listed)


def _streams(
    parts: Mapping[str | None, Sequence[Path]], choices: Choices, cuts: int = 1
) -> list[Stream]:
    return [
        Stream(
            documents=FileDocuments(files=files, field=choices.field, cuts=cuts),
            split=split,
            max_tokens=choices.max_tokens if split in (None, "train") else None,
        )
        for split, files in parts.items()
    ]


def name_path(path: Path) -> str:
    """What a file or folder of documents is called, where nobody says otherwise."""
    return path.resolve().name if path.is_dir() else path.name.partition(".")[0]


def list_texts(path: Path) -> JsonValue:
    """The files that ``find_source`` takes, as the manifest has them; no document is read.

    Raises:
        UsageError: if there are none.
    """
    return _list_parts(path, _find_parts(path, Choices()))


def _list_parts(path: Path, parts: Mapping[str | None, Sequence[Path]]) -> dict[str, JsonValue]:
    folder = path if path.is_dir() else path.parent
    return {split or "documents": _describe_files(files, folder) for split, files in parts.items()}


def _find_rule(files: Sequence[Path], entry: str, share: float) -> tuple[HeldOut | None, int]:
    """The rule, and into how many documents long texts are cut for it: as few as meet the share.

    The sections of a long text are few: of two, either may hold nearly all of it.
    """
    tried: list[tuple[float, int, HeldOut]] = []
    for cuts in CUTS:
        documents = FileDocuments(files=files, field=entry, cuts=cuts).read()
        found = [
            (digest_of(document.text), len(document.text.encode()))
            for document in islice(documents, FEW + 1)
        ]
        rule = hold_out(share, (digest for digest, _ in found))
        if rule is None or (not tried and len(found) > FEW):
            return rule, 1
        tried.append((miss_of(rule, found), cuts, rule))
        if tried[-1][0] <= FAR or sum(size for _, size in found) <= reading.SECTION_BYTES:
            break
    _, cuts, rule = min(tried, key=lambda one: one[:2])
    return rule, cuts


def _cut_by_position(
    name: str,
    files: Sequence[Path],
    share: float,
    listed: JsonValue,
    total: int | None,
    max_tokens: int | None,
) -> Source:
    texts = [file for file in files if any(True for _ in FileDocuments(files=[file]).read())]
    if len(texts) != 1 or kind_of(texts[0]) not in {None, "text"}:
        raise UsageError(
            f"expected more than one document to hold some out, got {len(texts)} in {name}; say "
            "which are for validation with `qkvary data prepare ... --validation PATH`"
        )

    def text() -> str:
        return "".join(document.text for document in FileDocuments(files=texts).read())

    return cut_source(
        name, text, share, where=str(texts[0]), files=listed, total=total, max_tokens=max_tokens
    )


def cut_source(
    name: str,
    text: Callable[[], str],
    share: float,
    *,
    where: str,
    files: JsonValue,
    total: int | None,
    max_tokens: int | None,
) -> Source:
    """One text: its first characters for training, the last ``share`` of them for validation."""
    parts = (("train", 0.0, 1.0 - share), ("validation", 1.0 - share, 1.0))
    streams = [
        Stream(
            documents=TextPart(text=text, start=start, end=end, where=where),
            split=split,
            max_tokens=max_tokens if split == "train" else None,
        )
        for split, start, end in parts
    ]
    return Source(
        name=name, streams=streams, total_bytes=total, files={"cut": 1.0 - share, "files": files}
    )


def _find_parts(path: Path, choices: Choices) -> dict[str | None, list[Path]]:
    """The files of each split; ``None`` for those that a rule splits."""
    if not path.exists():
        raise UsageError(f"expected a file or folder of documents, got {path}, which is none")
    split = _split_parts(path) if path.is_dir() else {}
    comes_split = "train" in split and (len(split) > 1 or choices.validation is not None)
    parts = split if comes_split else {"train": list_files(path)}
    if choices.validation is not None:
        parts = _hold_apart(parts, choices.validation, path)
    if "validation" not in parts:
        return {None if name == "train" else name: files for name, files in parts.items()}
    if choices.held_out is not None:
        raise UsageError(
            f"{path} comes split: there is nothing to hold out"
            if comes_split
            else "expected --validation or --held-out, got both"
        )
    return {name: parts[name] for name in ("train", "validation", "test") if name in parts}


def _hold_apart(
    parts: dict[str, list[Path]], validation: Path, path: Path
) -> dict[str, list[Path]]:
    """The parts with the named files for validation, and those files in no other part."""
    named = list_files(validation)
    held = {file.resolve() for file in named}
    kept = {
        name: [file for file in files if file.resolve() not in held]
        for name, files in parts.items()
        if name != "validation"
    }
    if not kept["train"]:
        raise UsageError(
            f"expected documents for training in {path}, got none beside those of --validation "
            f"{validation}"
        )
    return {name: files for name, files in kept.items() if files} | {"validation": named}


def _split_parts(folder: Path) -> dict[str, list[Path]]:
    """The files below entries that are named as splits are."""
    found: dict[str, list[Path]] = {}
    for entry in sorted(folder.iterdir()):
        name = SPLIT_NAMES.get(entry.name.partition(".")[0].lower())
        if name is None or not (entry.is_dir() or kind_of(entry)):
            continue
        if name in found:
            raise UsageError(f"{folder} has two entries for {name}: {entry.name} is one too many")
        found[name] = list_files(entry)
    return found


def list_files(path: Path) -> list[Path]:
    """A file, or all files of a folder that hold documents, by name.

    Raises:
        UsageError: if there are none.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"expected a file or folder of documents, got {path}, which is none")
    found = [file for file in sorted(path.rglob("*")) if kind_of(file) and file.is_file()]
    visible = [
        file
        for file in found
        if not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    if not visible:
        raise UsageError(f"expected files of {', '.join(KINDS)} in {path}, got none")
    return visible


def _describe_files(files: Sequence[Path], folder: Path) -> JsonValue:
    """Names, sizes, and what tells a file that was changed: a check sum, or when.

    A name outside of the folder is the file's own.
    """
    exact = sum(file.stat().st_size for file in files) <= EXACT_BYTES
    return [
        [
            file.relative_to(folder).as_posix() if file.is_relative_to(folder) else file.name,
            file.stat().st_size,
            _check_sum(file) if exact else file.stat().st_mtime_ns,
        ]
        for file in files
    ]


def _check_sum(file: Path) -> str:
    """What a text that was edited does not keep: to be told, not to be trusted."""
    found = 0
    with file.open("rb") as opened:
        while chunk := opened.read(2**20):
            found = zlib.crc32(chunk, found)
    return f"{found:08x}"
