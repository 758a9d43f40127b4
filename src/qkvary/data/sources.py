"""Sources of documents: streams, and the split that each goes to.

A source is split by folders or files named train, validation and test, or by a file that the user
names for validation; otherwise a rule holds out a share of the documents (of train, if only train
and test exist). A text that is a single document is split once, by position.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from qkvary.data import documents as reading
from qkvary.data.documents import KINDS, Document, DocumentSource, FileDocuments, TextPart, kind_of
from qkvary.data.encoding import digest_of
from qkvary.data.splits import (
    MAX_EXACT_DOCUMENTS,
    MAX_SHARE_ERROR,
    HeldOut,
    make_held_out,
    share_error,
)
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.untrusted_files import StrPath, read_path
from qkvary.text.units import read_count

SECTION_CUTS = (1, 64, 4096)
"""Number of documents into which a section of a long text is cut: tried in this order until the
held-out share is close enough. A document has 64 MiB, 1 MiB or 16 KiB."""
SHARE = 0.05
"""The default held-out share."""
EXACT_BYTES = 2**26
"""Up to this total size, changes of files are detected by content."""
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "valid": "validation",
    "validation": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
"""Names of folders and files that stand for a split of a corpus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Documents that are read in order."""

    documents: DocumentSource
    split: str | None
    """The split of the documents; ``None`` if the source's rule decides for each document."""
    max_tokens: int | None = None
    """Stop after the document that reaches this number of tokens (of training tokens, if the rule
    decides)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """All documents of one set."""

    name: str
    streams: Sequence[Stream]
    rule: HeldOut | None = None
    """The rule that assigns documents of streams without a split."""
    total_bytes: int | None = None
    """Bytes to read, if known."""
    files: JsonValue = field(default=None)
    """The files that are read, as the manifest stores them."""
    pin: Callable[[str | None], "Source"] | None = None
    """Returns the same source at a given commit, or at today's commit; for sources that can
    change."""

    def describe(self) -> dict[str, JsonValue]:
        """Return a description for the plan and the manifest, without local paths."""
        return {
            "name": self.name,
            "files": self.files,
            "held_out": None if self.rule is None else self.rule.describe(),
            "streams": [
                {"split": stream.split, "max_tokens": stream.max_tokens} for stream in self.streams
            ],
        }

    def documents(self) -> Iterator[Document]:
        """Yield all documents, for use before encoding."""
        for stream in self.streams:
            yield from stream.documents.read()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The selection of documents, and of those for validation."""

    name: str | None = None
    """Name of the set; the name of the source if not given."""
    field: str = "text"
    """The JSON field or table column that holds the text."""
    validation: StrPath | None = None
    """A file or folder of documents for validation."""
    held_out: float | None = None
    """Share of the documents to hold out for validation, if --validation names none. 0.05 for local
    files if not given."""
    max_tokens: int | str | None = None
    """Stop after the training document that reaches this many tokens: 100000, 64M."""

    @property
    def token_limit(self) -> int | None:
        """The maximum of training tokens; the last document may exceed it."""
        return read_count(self.max_tokens, "max_tokens")

    def share(self, default: float) -> float:
        """Return the share to hold out."""
        share = default if self.held_out is None else self.held_out
        if not 0.0 < share < 1.0:
            raise UsageError(f"expected a share between 0 and 1 to hold out, got {share}")
        return share


def find_source(path: Path, choices: SourceOptions | None = None) -> Source:
    """Return the documents of a file or folder."""
    chosen = choices or SourceOptions()
    name = chosen.name or default_name(path)
    parts = find_parts(path, chosen)
    listed = describe_parts(path, parts)
    files = [file for some in parts.values() for file in some]
    packed = any(file.suffix.lower() == ".gz" or kind_of(file) == "parquet" for file in files)
    total = None if packed else sum(file.stat().st_size for file in files)
    rule, cuts, cut = None, 1, None
    if None in parts:
        share = chosen.share(SHARE)
        rule, cuts = _find_rule(parts[None], chosen.field, share)
        if rule is None:
            text = _find_only_text(parts.pop(None), name)
            cut = cut_source(
                name, text.read_all, share, chosen, where=str(text.files[0]), files=listed
            )
    if cuts > 1:
        # A resumed preparation must cut in the same positions.
        listed["cuts"] = cuts
    streams = [
        Stream(
            documents=FileDocuments(files=files, field=chosen.field, cuts=cuts),
            split=split,
            max_tokens=chosen.token_limit if split in (None, "train") else None,
        )
        for split, files in parts.items()
    ]
    if cut is not None:
        return replace(cut, streams=[*cut.streams, *streams], total_bytes=total)
    return Source(name=name, streams=streams, rule=rule, total_bytes=total, files=listed)


def default_name(path: Path) -> str:
    """Return the default name of a file or folder of documents."""
    return path.resolve().name if path.is_dir() else path.name.partition(".")[0]


def describe_parts(path: Path, parts: Mapping[str | None, Sequence[Path]]) -> dict[str, JsonValue]:
    """Return name, size, and a checksum or modification time of each file of a source.

    A file outside of the folder is listed by its own name. The checksum detects edits, but not
    tampering.
    """
    folder = path if path.is_dir() else path.parent
    described: dict[str, JsonValue] = {}
    for split, files in parts.items():
        is_exact = sum(file.stat().st_size for file in files) <= EXACT_BYTES
        described[split or "documents"] = [
            [
                file.relative_to(folder).as_posix() if file.is_relative_to(folder) else file.name,
                file.stat().st_size,
                f"{zlib.crc32(file.read_bytes()):08x}" if is_exact else file.stat().st_mtime_ns,
            ]
            for file in files
        ]
    return described


def _find_rule(files: Sequence[Path], entry: str, share: float) -> tuple[HeldOut | None, int]:
    """Return the rule, and the smallest number of cuts that reaches the share.

    A long text may have few sections, and one of two may hold nearly all of it.
    """
    tried: list[tuple[float, int, HeldOut]] = []
    for cuts in SECTION_CUTS:
        documents = islice(
            FileDocuments(files=files, field=entry, cuts=cuts).read(), MAX_EXACT_DOCUMENTS + 1
        )
        found = [(digest_of(one.text), len(one.text.encode())) for one in documents]
        rule = make_held_out(share, [digest for digest, _ in found])
        if rule is None or (not tried and len(found) > MAX_EXACT_DOCUMENTS):
            return rule, 1
        total = sum(size for _, size in found)
        held = sum(size for digest, size in found if rule.split_of(digest) == "validation")
        tried.append((share_error(share, held, total - held), cuts, rule))
        if tried[-1][0] <= MAX_SHARE_ERROR or total <= reading.SECTION_BYTES:
            break
    _, cuts, rule = min(tried, key=lambda one: one[:2])
    return rule, cuts


def _find_only_text(files: Sequence[Path], name: str) -> FileDocuments:
    """Return the only file with a text, which is split by position."""
    texts = [file for file in files if any(True for _ in FileDocuments(files=[file]).read())]
    if not texts:
        raise UsageError(f"expected a text, got an empty one in {', '.join(map(str, files[:3]))}")
    if len(texts) != 1 or kind_of(texts[0]) not in {None, "text"}:
        raise UsageError(
            f"expected documents that differ, to hold some out, got {len(texts)} files in {name}; "
            "name those for validation with `qkvary data prepare ... --validation PATH`"
        )
    return FileDocuments(files=texts)


def cut_source(
    name: str,
    text: Callable[[], str],
    share: float,
    choices: SourceOptions,
    *,
    where: str,
    files: JsonValue,
) -> Source:
    """Return one text split by position: the last ``share`` of the characters is for validation."""
    limit = choices.token_limit
    streams = [
        Stream(
            documents=TextPart(text=text, start=start, end=end, where=where),
            split=split,
            max_tokens=most,
        )
        for split, start, end, most in (
            ("train", 0.0, 1.0 - share, limit),
            ("validation", 1.0 - share, 1.0, None),
        )
    ]
    return Source(name=name, streams=streams, files={"cut": 1.0 - share, "files": files})


def find_parts(path: Path, choices: SourceOptions) -> dict[str | None, list[Path]]:
    """Return the files of each split; ``None`` for those that a rule splits."""
    split = _split_parts(path) if path.is_dir() else {}
    comes_split = "train" in split and (len(split) > 1 or choices.validation is not None)
    parts = split if comes_split else {"train": list_files(path)}
    if choices.validation is not None:
        parts = _exclude_validation(parts, read_path(choices.validation), path)
    if "validation" not in parts:
        return {None if name == "train" else name: files for name, files in parts.items()}
    if choices.held_out is not None:
        raise UsageError(
            f"{path} already has splits: leave --held-out out"
            if comes_split
            else "expected --validation or --held-out, got both"
        )
    return {name: parts[name] for name in ("train", "validation", "test") if name in parts}


def _exclude_validation(
    parts: dict[str, list[Path]], validation: Path, path: Path
) -> dict[str, list[Path]]:
    """Add the named validation files, and remove them from the other parts."""
    named = list_files(validation)
    held = {file.resolve() for file in named}
    kept = {
        name: [file for file in files if file.resolve() not in held]
        for name, files in parts.items()
        if name != "validation"
    }
    if not kept["train"]:
        raise UsageError(
            f"expected documents for training in {path}, got only those of --validation "
            f"{validation}"
        )
    return {name: files for name, files in kept.items() if files} | {"validation": named}


def _split_parts(folder: Path) -> dict[str, list[Path]]:
    """Return the files below entries that are named like splits."""
    found: dict[str, list[Path]] = {}
    for entry in sorted(folder.iterdir()):
        name = SPLIT_NAMES.get(entry.name.partition(".")[0].lower())
        if name is None or not (entry.is_dir() or kind_of(entry)):
            continue
        if name in found:
            raise UsageError(f"expected one entry for {name} in {folder}, got {entry.name} too")
        found[name] = list_files(entry)
    return found


def list_files(path: Path) -> list[Path]:
    """Return a file, or all document files of a folder, sorted."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        missing = "is neither" if path.exists() else "does not exist"
        raise UsageError(f"expected a file or folder of documents, got {path}, which {missing}")
    found = [file for file in sorted(path.rglob("*")) if kind_of(file) and file.is_file()]
    visible = [
        file
        for file in found
        if not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    if not visible:
        raise UsageError(f"expected files of {', '.join(KINDS)} in {path}, got none")
    return visible


def read_documents(paths: Iterable[Path]) -> Iterator[Document]:
    """Yield the documents of files and folders."""
    files = [file for path in paths for file in list_files(path)]
    return FileDocuments(files=files).read()
