"""Finds sources of documents (files, corpora, hub data) and assigns their streams to splits.

A source is split by folders or files named train, validation and test, or by files that the user
names for validation. Otherwise a rule holds out a share of the documents. If only train and test
exist, the rule holds out documents of train. A text that is a single document is split by position.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qkvary.data.checksums import TINY_SHAKESPEARE_SHA256
from qkvary.data.documents import (
    KINDS,
    Document,
    DocumentSource,
    FileDocuments,
    TextPart,
    find_rule,
    kind_of,
)
from qkvary.data.files import local_paths
from qkvary.data.hub_documents import HubDocuments, find_commit, parse_hub
from qkvary.data.shakespeare import load_text
from qkvary.data.splits import HeldOut
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.storage.untrusted_files import read_path
from qkvary.text.names import find_name, suggest
from qkvary.text.numbers import Count

SHARE = 0.05
"""The default held-out share."""
EXACT_BYTES = 2**26
"""Maximum total size of files whose changes are detected by content.

Changes of larger files are detected by the modification time.
"""
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "valid": "validation",
    "validation": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
"""The split that a folder or file of a corpus belongs to, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Documents that are read in order."""

    documents: DocumentSource
    split: str | None
    """The split of the documents; ``None`` if the source's rule decides it for each document."""
    max_tokens: int | None = None
    """Stop after the document that reaches this number of tokens. Only training tokens count if the
    rule assigns the documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The documents of one data set."""

    name: str
    streams: Sequence[Stream]
    rule: HeldOut | None = None
    """The rule that assigns documents to splits, for streams whose ``split`` is None."""
    total_bytes: int | None = None
    """Total bytes to read, if known."""
    files: JsonValue = None
    """Description of the files and of how texts are cut, for the plan and the manifest. It contains
    no local paths."""

    def describe(self) -> dict[str, JsonValue]:
        """Return a description for the plan and the manifest."""
        return {
            "name": self.name,
            "files": self.files,
            "held_out": None if self.rule is None else self.rule.describe(),
            "streams": [
                {"split": stream.split, "max_tokens": stream.max_tokens} for stream in self.streams
            ],
        }

    def documents(self) -> Iterator[Document]:
        """Yield the documents of all streams."""
        for stream in self.streams:
            yield from stream.documents.read()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSource:
    """A source that was found by its name or path, and whose documents are not read yet."""

    name: str
    """The name of the data set."""
    read: Callable[[], Source]
    """Returns the source. Documents are read only if this is needed to split them. Raises an error
    if there are no documents."""
    files: Mapping[str, JsonValue] | None = None
    """The files of each split, or the data set on the hub; None if the name identifies the set."""
    content: JsonValue = None
    """The files and the options. They distinguish data sets that have the same name."""
    pin: Callable[[str | None], Source] | None = None
    """Returns the source of a hub data set at a given commit, or at the latest one if None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options that choose the documents of a source and the documents for validation."""

    name: str | None = None
    """Name of the set. The default is the name of the source."""
    field: str = "text"
    """The JSON field or table column that holds the text."""
    validation: Path | None = None
    """A file or folder of documents for validation."""
    held_out: float | None = None
    """Share of the documents to hold out for validation, if --validation is not given. The default
    for local files is 0.05."""
    max_tokens: Count | None = None
    """Stop after the training document that reaches this many tokens: 100000, 64M."""

    def share(self, default: float) -> float:
        """Return the share to hold out. The share is ``default`` if ``held_out`` is None."""
        share = default if self.held_out is None else self.held_out
        if not 0.0 < share < 1.0:
            raise UsageError(f"expected a share between 0 and 1 to hold out, got {share}")
        return share


def _find_files(path: Path, options: SourceOptions) -> FoundSource:
    """Return the source of a file or folder."""
    parts = find_parts(path, options)
    files = describe_parts(path, parts)
    name = options.name or (
        path.resolve().name if path.is_dir() else path.name.lstrip(".").partition(".")[0]
    )
    return FoundSource(
        name=name,
        read=lambda: _read_files(name, parts, files, options),
        files=files,
        content=[files, options.field, options.share(SHARE), options.max_tokens],
    )


def _read_files(
    name: str,
    parts: Mapping[str | None, Sequence[Path]],
    files: Mapping[str, JsonValue],
    options: SourceOptions,
) -> Source:
    every = [file for some in parts.values() for file in some]
    packed = any(file.suffix.lower() == ".gz" or kind_of(file) == "parquet" for file in every)
    source, cuts, limit = Source(name=name, streams=(), files=files), 1, options.max_tokens
    if None in parts:
        share = options.share(SHARE)
        rule, cuts = find_rule(parts[None], options.field, share)
        if rule is None:
            file, text = _find_only_text(parts[None], name, options.field)
            source = _cut_text(name, text, share, limit, where=str(file), files=files)
            parts = {split: some for split, some in parts.items() if split is not None}
        else:
            # A resumed preparation must cut in the same positions.
            listed = files if cuts == 1 else {**files, "cuts": cuts}
            source = replace(source, rule=rule, files=listed)
    streams = [
        Stream(
            documents=FileDocuments(files=some, field=options.field, cuts=cuts),
            split=split,
            max_tokens=limit if split in (None, "train") else None,
        )
        for split, some in parts.items()
    ]
    total = None if packed else sum(file.stat().st_size for file in every)
    return replace(source, streams=[*source.streams, *streams], total_bytes=total)


def describe_parts(path: Path, parts: Mapping[str | None, Sequence[Path]]) -> dict[str, JsonValue]:
    """Return the path, the size, and a checksum or modification time of each file of each part.

    Paths are relative to the folder. The checksum detects edits, but not tampering.
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


def _find_only_text(files: Sequence[Path], name: str, field: str) -> tuple[Path, str]:
    """Return the only non-empty file and its text. The text will be split by position."""
    read = {file: FileDocuments(files=[file], field=field).read() for file in files}
    joined = ((file, "".join(one.text for one in some)) for file, some in read.items())
    texts = [(file, text) for file, text in joined if text]
    if not texts:
        raise UsageError(f"expected a text, got an empty one in {', '.join(map(str, files[:3]))}")
    if len(texts) != 1 or kind_of(texts[0][0]) not in {None, "text"}:
        raise UsageError(
            "expected at least two distinct documents, so that some of them can be held out, got "
            f"{len(texts)} files in {name}; choose the validation files with `qkvary data prepare "
            "... --validation PATH`"
        )
    return texts[0]


def _cut_text(
    name: str, text: str, share: float, limit: int | None, *, where: str, files: JsonValue
) -> Source:
    """Cut one text into training and validation parts, and return them as a source.

    The validation part is the last ``share`` of the characters.
    """
    end = int((1.0 - share) * len(text))
    train, validation = (TextPart(text=part, where=where) for part in (text[:end], text[end:]))
    streams = [
        Stream(documents=train, split="train", max_tokens=limit),
        Stream(documents=validation, split="validation"),
    ]
    listed: JsonValue = {"cut": 1.0 - share, "files": files}
    return Source(name=name, streams=streams, total_bytes=len(text.encode()), files=listed)


def find_parts(path: Path, options: SourceOptions) -> dict[str | None, list[Path]]:
    """Return the files of each split. Files that a rule will split have the key ``None``."""
    split = _split_parts(path) if path.is_dir() else {}
    comes_split = "train" in split and (len(split) > 1 or options.validation is not None)
    parts = split if comes_split else {"train": list_files(path)}
    if options.validation is not None:
        parts = _exclude_validation(parts, options.validation)
    if "validation" not in parts:
        return {None if name == "train" else name: files for name, files in parts.items()}
    if options.held_out is not None:
        raise UsageError(
            f"{path} already has splits: omit --held-out"
            if comes_split
            else "expected --validation or --held-out, got both"
        )
    return {name: parts[name] for name in ("train", "validation", "test") if name in parts}


def _exclude_validation(parts: dict[str, list[Path]], validation: Path) -> dict[str, list[Path]]:
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
            f"expected documents for training, got only those of --validation {validation}"
        )
    return {name: files for name, files in kept.items() if files} | {"validation": named}


def _split_parts(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each split. The names of files and subfolders tell the split."""
    found: dict[str, list[Path]] = {}
    for entry in sorted(folder.iterdir()):
        name = SPLIT_NAMES.get(entry.name.partition(".")[0].lower())
        if name is not None and (entry.is_dir() or kind_of(entry)):
            found.setdefault(name, []).extend(list_files(entry))
    return found


def list_files(path: Path) -> list[Path]:
    """Return a file, or all document files of a folder, sorted."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        missing = "is neither" if path.exists() else "does not exist"
        raise UsageError(f"expected a file or folder of documents, got {path}, which {missing}")
    found = [
        file
        for file in sorted(path.rglob("*"))
        if kind_of(file)
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    if not found:
        raise UsageError(f"expected files of {', '.join(KINDS)} in {path}, got none")
    return found


def read_documents(paths: Iterable[Path]) -> Iterator[Document]:
    """Yield the documents of files and folders."""
    files = [file for path in paths for file in list_files(path)]
    return FileDocuments(files=files).read()


# ---- corpora by name


SHIPPED = "tiny-shakespeare"
"""The corpus inside the package."""
HUB_SHARE = 0.005
"""The default validation share of a data set of the hub; small, because these sets are large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """A named corpus."""

    name: str
    local: str | None = None
    """The file or folder in ``QKVARY_DATA`` or in the cache."""
    hub: str | None = None
    """The data set on the hub, ``owner/name`` or ``owner/name:configuration``."""
    hub_validation: str | None = None
    """The validation split of the data set; without one, a share is held out."""
    share: float = HUB_SHARE
    """The share to hold out, if the corpus has no splits."""
    max_tokens: int | None = None
    """The default maximum of training tokens."""
    validation_tokens: int | None = None
    """The maximum of validation tokens, if the hub has a validation split."""


CORPORA = {
    corpus.name: corpus
    for corpus in (
        # Licence: public domain.
        Corpus(name="english-novels", local="english_novels"),
        Corpus(
            name="tinystories",
            # Licence: CDLA-Sharing-1.0.
            local="tinystories",
            hub="roneneldan/TinyStories",
            hub_validation="validation",
        ),
        # Licence: CC BY-SA 3.0 and GFDL.
        Corpus(name="wikitext-2", local="wikitext-2"),
        # Licence: public domain.
        Corpus(name=SHIPPED, share=0.1),
        Corpus(
            name="slimpajama",
            # Licence: those of its sources.
            hub="cerebras/SlimPajama-627B",
            hub_validation="validation",
            max_tokens=10_000_000_000,
            validation_tokens=10_000_000,
        ),
        # Licence: CC0 for the collection.
        Corpus(name="openwebtext", hub="Skylion007/openwebtext", share=0.0005),
        # Licence: ODC-By 1.0.
        Corpus(name="fineweb", hub="HuggingFaceFW/fineweb:sample-10BT", share=0.0005),
    )
}


def find_corpus(text: str) -> Corpus | None:
    """Return the corpus named by ``name`` or ``name/tokenizer``, or None if there is none.

    The exact name of a corpus always means the corpus, even if a file or folder has the same name.
    With any other spelling, an existing path takes precedence over the corpus.
    """
    if text not in CORPORA and read_path(text).exists():
        return None
    return CORPORA.get(find_name(text.partition("/")[0], CORPORA) or "")


def find_source(text: str, options: SourceOptions | None = None) -> FoundSource:
    """Find the source that is a file, a folder, a corpus by name, or ``hf:owner/name``.

    If the name is unknown or the corpus is not on this machine, the error is raised later, when the
    result is read. An unknown name may be the name of a prepared set.
    """
    options = options or SourceOptions()
    if text.startswith("hf:"):
        return _find_on_hub(text.removeprefix("hf:"), options)
    corpus = None if "/" in text else find_corpus(text)
    path = read_path(text) if corpus is None else find_local(corpus)
    if corpus is not None:
        options = replace(options, name=options.name or corpus.name)
        if corpus.name == SHIPPED:
            return _find_shipped(corpus, options)
    if text and path is not None and path.exists():
        return _find_files(path, options)
    if corpus is not None and corpus.hub is not None:
        return _find_on_hub(corpus.hub, options, corpus)

    def refuse() -> Source:
        if corpus is not None:
            raise UsageError(
                f"{corpus.name} is not on this machine: put it at {corpus.local} below QKVARY_DATA"
            )
        is_path = "/" in text or kind_of(Path(text)) is not None
        found = (
            f"{text}, which does not exist" if is_path else f"{text!r}; {suggest(text, CORPORA)}"
        )
        raise UsageError(
            f"expected a file, a folder, hf:owner/name or the name of a corpus, got {found}"
        )

    if "/" in text:
        refuse()
    return FoundSource(name=options.name or text, read=refuse)


def find_local(corpus: Corpus) -> Path | None:
    """Return the path of a corpus on this machine, or ``None``."""
    paths = local_paths(corpus.local) if corpus.local else []
    return next((path for path in paths if path.exists()), None)


def _find_shipped(corpus: Corpus, options: SourceOptions) -> FoundSource:
    """Return the text inside the package, with its customary split."""
    if options.validation is not None:
        raise UsageError(f"{SHIPPED} already has splits: omit --validation")
    name, share, limit = str(options.name), options.share(corpus.share), options.max_tokens
    files: JsonValue = {"sha256": TINY_SHAKESPEARE_SHA256}
    return FoundSource(
        name=name,
        read=lambda: _cut_text(name, load_text(), share, limit, where=SHIPPED, files=files),
        content=[share, limit],
    )


def _find_on_hub(text: str, options: SourceOptions, corpus: Corpus | None = None) -> FoundSource:
    if options.validation is not None:
        raise UsageError(
            "expected no --validation for a data set of the hub, got --validation: use --held-out"
        )
    repository, configuration, revision = parse_hub(text)
    named = corpus.hub_validation if corpus and options.held_out is None else None
    rule = None if named else HeldOut(share=options.share(corpus.share if corpus else HUB_SHARE))
    limit = options.max_tokens or (corpus.max_tokens if corpus else None)
    parts = [("train", "train" if named else None, limit)]
    if named and corpus:
        parts.append((named, "validation", corpus.validation_tokens))
    files: dict[str, JsonValue] = {
        "hub": repository,
        "configuration": configuration,
        "revision": revision,
    }

    def read(commit: str | None = None) -> Source:
        streams = [
            Stream(
                documents=HubDocuments(
                    repository=repository,
                    configuration=configuration,
                    field=options.field,
                    split=theirs,
                    revision=commit or revision,
                ),
                split=split,
                max_tokens=most,
            )
            for theirs, split, most in parts
        ]
        return Source(
            name=options.name or repository.rpartition("/")[2],
            streams=streams,
            rule=rule,
            files=files if commit is None else {**files, "commit": commit},
        )

    source = read()
    return FoundSource(
        name=source.name,
        read=read,
        files=None if corpus else files,
        content=source.describe(),
        pin=lambda known: read(known or find_commit(repository, revision)),
    )
