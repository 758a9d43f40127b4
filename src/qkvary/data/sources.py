"""Sources of documents, also by the name of a corpus: streams, and the split that each goes to.

A source is split by folders or files named train, validation and test, or by a file that the user
names for validation; otherwise a rule holds out a share of the documents (of train, if only train
and test exist). A text that is a single document is split once, by position.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from qkvary.data import documents as reading
from qkvary.data.checksums import FEATURES_MADE_HERE, TINY_SHAKESPEARE_SHA256
from qkvary.data.documents import KINDS, Document, DocumentSource, FileDocuments, TextPart, kind_of
from qkvary.data.encoding import digest_of
from qkvary.data.files import local_paths
from qkvary.data.hub_documents import HubDocuments, find_commit, parse_hub
from qkvary.data.shakespeare import load_text
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
from qkvary.text.names import find_name, suggest
from qkvary.text.numbers import read_count

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
    files: Mapping[str, JsonValue] | None = None
    """The files that are read, by split; None if they are not known yet."""
    cuts: int = 1
    """Number of documents into which a section of a long text is cut."""
    cut: float | None = None
    """The share of a single text, from its beginning, that is for training."""
    pin: Callable[[str | None], "Source"] | None = None
    """Returns the same source at a given commit, or at today's commit; for sources that can
    change."""

    def describe(self) -> dict[str, JsonValue]:
        """Return a description for the plan and the manifest, without local paths."""
        # A resumed preparation must cut in the same positions.
        files = self.files if self.cuts == 1 else {**(self.files or {}), "cuts": self.cuts}
        return {
            "name": self.name,
            "files": files if self.cut is None else {"cut": self.cut, "files": files},
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
    source = Source(name=name, streams=(), files=listed)
    if None in parts:
        share = chosen.share(SHARE)
        rule, cuts = _find_rule(parts[None], chosen.field, share)
        source = replace(source, rule=rule, cuts=cuts)
        if rule is None:
            text = _find_only_text(parts.pop(None), name)
            source = cut_source(
                name, text.read_all, share, chosen, where=str(text.files[0]), files=listed
            )
    streams = [
        Stream(
            documents=FileDocuments(files=files, field=chosen.field, cuts=source.cuts),
            split=split,
            max_tokens=chosen.token_limit if split in (None, "train") else None,
        )
        for split, files in parts.items()
    ]
    return replace(source, streams=[*source.streams, *streams], total_bytes=total)


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
    """Return the rule for held-out documents, and the fewest cuts at which it reaches the share.

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
    files: Mapping[str, JsonValue],
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
    return Source(name=name, streams=streams, files=files, cut=1.0 - share)


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


def canonical_reference(reference: str) -> str:
    """Return a reference with the name of a corpus in its own spelling, and any other unchanged."""
    name, slash, tokenizer = reference.partition("/")
    if name in CORPORA or Path(reference).expanduser().exists():
        return reference
    return (find_name(name, CORPORA) or name) + slash + tokenizer


def open_source(reference: str, choices: SourceOptions | None = None) -> Source:
    """Return the documents of a file or folder, a corpus by name, or ``hf:owner/name``."""
    chosen, reference = choices or SourceOptions(), canonical_reference(reference)
    corpus = CORPORA.get(reference)
    if corpus is not None:
        chosen = replace(chosen, name=chosen.name or reference)
    if reference.startswith("hf:"):
        return _from_hub(reference.removeprefix("hf:"), chosen)
    if corpus is not None and reference == SHIPPED:
        # The text inside the package, with its customary split.
        if chosen.validation is not None:
            raise UsageError(f"{SHIPPED} already has splits: leave --validation out")
        share, files = chosen.share(corpus.share), {"sha256": TINY_SHAKESPEARE_SHA256}
        name = str(chosen.name)
        source = cut_source(name, load_text, share, chosen, where=SHIPPED, files=files)
        return replace(source, total_bytes=len(load_text()))
    path = Path(reference).expanduser() if corpus is None else find_local(corpus)
    if reference and path is not None and path.exists():
        return find_source(path, chosen)
    if corpus is not None and corpus.hub is not None:
        return _from_hub(corpus.hub, chosen, corpus)
    if corpus is not None:
        raise UsageError(
            f"{corpus.name} is not on this machine: put it at {corpus.local} below QKVARY_DATA"
        )
    advice = (
        "`qkvary data features --weights FOLDER` makes these features of images"
        if reference == FEATURES_MADE_HERE
        else suggest(reference, CORPORA)
    )
    raise UsageError(
        f"expected a file, a folder, hf:owner/name or the name of a corpus, got {reference!r}; "
        f"{advice}"
    )


def find_local(corpus: Corpus) -> Path | None:
    """Return where the files of a corpus are on this machine, if they exist."""
    paths = local_paths(corpus.local) if corpus.local else []
    return next((path for path in paths if path.exists()), None)


def identify_source(reference: str) -> Source | None:
    """Return the default name of a source's set and the list of its files, without reading them.

    The list is missing for a prepared set, and for a corpus that is not on this machine. Returns
    ``None`` if the reference is neither a source nor a name.
    """
    if reference.startswith("hf:"):
        return open_source(reference)
    corpus = CORPORA.get(reference)
    path = Path(reference).expanduser() if corpus is None else find_local(corpus)
    if path is not None and path.exists():
        name = default_name(path) if corpus is None else reference
        files = describe_parts(path, find_parts(path, SourceOptions()))
        return Source(name=name, streams=(), files=files)
    is_name = corpus is not None or "/" not in reference
    return Source(name=reference, streams=()) if is_name else None


def _from_hub(
    reference: str, choices: SourceOptions, corpus: Corpus | None = None, commit: str | None = None
) -> Source:
    if choices.validation is not None:
        raise UsageError("expected --held-out for a data set of the hub, got --validation")
    repository, configuration, revision = parse_hub(reference)
    named = corpus.hub_validation if corpus and choices.held_out is None else None

    def stream(theirs: str, split: str | None, max_tokens: int | None) -> Stream:
        documents = HubDocuments(
            repository=repository,
            configuration=configuration,
            revision=commit or revision,
            split=theirs,
            field=choices.field,
        )
        return Stream(documents=documents, split=split, max_tokens=max_tokens)

    def pin(known: str | None) -> Source:
        return _from_hub(reference, choices, corpus, known or find_commit(repository, revision))

    most = choices.token_limit or (corpus.max_tokens if corpus else None)
    streams = [stream("train", "train" if named else None, most)]
    if named and corpus:
        streams.append(stream(named, "validation", corpus.validation_tokens))
    share = choices.share(corpus.share if corpus else HUB_SHARE)
    files: dict[str, JsonValue] = {
        "hub": repository,
        "configuration": configuration,
        "revision": revision,
    }
    return Source(
        name=choices.name or repository.rpartition("/")[2],
        streams=streams,
        rule=None if named else HeldOut(share=share),
        files=files if commit is None else {**files, "commit": commit},
        pin=pin if commit is None else None,
    )
