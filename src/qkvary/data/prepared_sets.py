"""Finds, reuses or prepares the data set (tokenized text) that a name or a text stands for.

Three kinds of callers ask for a data set:

- A training run calls ``find_set``, which may return an ``UnpreparedText``. The training run then
  prepares the data set of this text, or only describes the data set by a plan.
- A study expects one particular data set. ``find_prepared`` returns the folder of an existing data
  set, ``ensure_prepared`` first prepares a named corpus if necessary, and ``check_prepared``
  compares fingerprints.
- ``qkvary data prepare`` calls ``prepare_source`` with all options of a preparation.

A data set is reused while its source files are unchanged. A reused data set keeps the options
(token limit, field, held-out share) with which it was prepared.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from qkvary.data.preparation import OnProgress, prepare
from qkvary.data.prepared import (
    PreparedData,
    is_prepared,
    open_prepared,
    read_fingerprint,
    stored_plan,
)
from qkvary.data.sources import (
    FoundSource,
    SourceOptions,
    find_corpus,
    find_local,
    find_source,
)
from qkvary.data.splits import MAX_SHARE_ERROR, share_error
from qkvary.data.tokenizer_files import count_tokens, load_tokenizer, name_tokenizer, plain_name
from qkvary.storage.environment import cache_directory
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import encode
from qkvary.storage.manifest import read_manifest
from qkvary.storage.untrusted_files import read_path

DEFAULT_TOKENIZER = "gpt2"
DIGITS = 8
"""Hexadecimal digits in a folder's name that identify its documents."""


def default_folder(name: str, tokenizer: str) -> Path:
    """Return the default folder of a set: ``data/<name>-<tokenizer>`` of the cache."""
    cache = cache_directory()
    if cache is None:
        raise UsageError(
            "expected a cache directory, got none: set QKVARY_CACHE, or name a folder with "
            "`qkvary data prepare ... --out DIR`"
        )
    return cache / "data" / f"{plain_name(name)}-{tokenizer}"


def _folder_of(found: FoundSource, tokenizer: str, *, by_content: bool = False) -> Path:
    """Return the default folder of a source's set, without parsing documents."""
    digits = hashlib.sha256(encode(found.content).encode()).hexdigest()[:DIGITS]
    name = f"{found.name}-{digits}" if by_content else found.name
    return default_folder(name, name_tokenizer(tokenizer))


def find_prepared(reference: str) -> Path:
    """Return the folder of a prepared set.

    The reference is a path, ``name/tokenizer``, or ``name`` alone, which means the set with GPT-2's
    tokenizer.
    """
    path = read_path(reference)
    if is_prepared(path):
        return path
    corpus, (name, _, tokenizer) = find_corpus(reference), reference.partition("/")
    name, tokenizer = corpus.name if corpus else name, tokenizer or DEFAULT_TOKENIZER
    if not name or "/" in tokenizer or (corpus is None and path.exists()):
        raise UsageError(
            f"expected a prepared set, got {reference}: run `qkvary data prepare {reference}` and "
            "give its folder"
        )
    folder = default_folder(name, plain_name(tokenizer))
    if not is_prepared(folder):
        advice = f": run `qkvary data prepare {name} --tokenizer {tokenizer}`"
        raise UsageError(
            f"expected a prepared set, got {reference}, which is neither a folder nor in the cache"
            f"{advice if corpus else ''}"
        )
    return folder


def ensure_prepared(reference: str) -> Path:
    """Return the folder of a prepared set; prepare it first if it belongs to a named corpus."""
    try:
        return find_prepared(reference)
    except UsageError:
        corpus = find_corpus(reference)
        if corpus is None:
            raise
        return prepare_source(corpus.name, reference.partition("/")[2] or DEFAULT_TOKENIZER).path


def prepare_source(
    source: str | FoundSource,
    tokenizer: str = DEFAULT_TOKENIZER,
    *,
    choices: SourceOptions | None = None,
    out: Path | None = None,
    separator: str = "",
    by_content: bool = False,
    workers: int | None = None,
    on_progress: OnProgress = lambda _bytes, _total, _note: None,
) -> PreparedData:
    """Prepare a corpus, a file, a folder or ``hf:owner/name``, or open the existing set.

    The name of the default folder includes a digest of the documents if ``by_content``, or if
    another file or folder already has the plain name.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"expected at least one worker, got {workers}")
    found = find_source(source, choices) if isinstance(source, str) else source
    # A name that is no source is refused before a folder is named after it.
    read = found.read()
    folder = out or _folder_of(found, tokenizer, by_content=by_content)
    is_own = by_content or found.is_corpus or out is not None
    if not is_own and _has_other_documents(folder, found):
        folder = _folder_of(found, tokenizer, by_content=True)
    if found.pin is not None:
        plan = stored_plan(folder)
        files = None if plan is None else plan["source"]["files"]
        commit = files.get("commit") if isinstance(files, dict) else None
        # A complete set from a version that did not record commits is kept.
        if commit is not None or not is_prepared(folder):
            read = found.pin(cast("str | None", commit))
    return prepare(
        read,
        load_tokenizer(tokenizer, documents=read.documents(), separator=separator),
        folder,
        tokenizer_name=name_tokenizer(tokenizer),
        workers=workers,
        on_progress=on_progress,
    )


def _has_other_documents(folder: Path, found: FoundSource) -> bool:
    """Return whether a folder holds a data set that was made from a different text."""
    plan = stored_plan(folder)
    if plan is None:
        return False
    return _files_by_split(plan["source"]["files"])[0] != _files_by_split(found.files)[0]


def _files_by_split(listed: Any) -> tuple[Any, Any, Any]:
    """Return the stored files for training, validation and test, each None if there are none."""
    files = listed or {}
    # A text that was split is a whole file.
    files = files.get("files", files)
    return files.get("train", files.get("documents")), files.get("validation"), files.get("test")


def check_prepared(reference: str, sha256: str, report: Callable[[str], None]) -> None:
    """Check that a prepared set is the expected one; prepare it if its text is on this machine."""
    corpus = find_corpus(reference)
    if corpus is not None and corpus.local is None:
        # The text on the hub may be longer, and would give another set.
        corpus = None
    try:
        folder = find_prepared(reference)
    except UsageError:
        if corpus is not None and find_local(corpus) is None:
            raise UsageError(
                f"expected the data set {sha256[:12]} of {reference} or its text, got "
                f"neither: put the text at {corpus.local} below QKVARY_DATA"
            ) from None
        report(f"preparing {reference}")
        folder = ensure_prepared(reference)
    found = read_fingerprint(folder)
    if found == sha256:
        return
    remedy = (
        "prepare the expected set there"
        if corpus is None
        else "remove that folder, and put the text of the expected set at "
        f"{corpus.local} below QKVARY_DATA"
    )
    raise UsageError(
        f"expected the data set {sha256[:12]} of {reference}, got {found[:12]} in {folder}: "
        f"{remedy}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSet:
    """The data set for a text, whether or not the data set has been prepared yet."""

    name: str
    vocabulary: int
    folder: str = ""
    """The folder of the set, if it is prepared."""
    fingerprint: str = ""
    has_test: bool = True
    """Whether the set has a test split; without one, the validation split is scored at the end."""
    prepared: PreparedData | None = None
    """The data set, if it is prepared."""
    text_bytes: int | None = None
    """The bytes of the text, if they are known and the set is not prepared."""
    problem: str | None = None

    @classmethod
    def of(cls, data: PreparedData) -> Self:
        """Return the plan of a set that is already prepared."""
        return cls(
            name=data.name,
            vocabulary=data.vocabulary,
            folder=str(data.path.resolve()),
            fingerprint=data.fingerprint,
            has_test="test" in data.splits,
            prepared=data,
            problem=find_share_error(data),
        )

    def require_row(self, context: int) -> None:
        """Refuse a set whose training text is shorter than a row of ``context`` tokens."""
        # A text that is not prepared has at most one token per byte, and one per document, each of
        # which has a byte.
        most = None if self.text_bytes is None else 2 * self.text_bytes
        tokens = most if self.prepared is None else self.prepared.splits["train"].tokens
        if tokens is not None and tokens <= context:
            raise UsageError(
                f"expected a text that is longer than one row of {context:,} tokens, got at most "
                f"{tokens:,} tokens in {self.name}: give a longer text or a smaller --context"
            )


@dataclass(frozen=True, slots=True)
class UnpreparedText:
    """A text that has no prepared set yet, and the tokenizer to prepare it with."""

    source: FoundSource
    tokenizer: str

    def prepare(self, on_progress: OnProgress) -> PreparedData:
        """Prepare the data set of this text in the default folder of the data set."""
        by_content = not self.source.is_corpus
        return prepare_source(
            self.source, self.tokenizer, by_content=by_content, on_progress=on_progress
        )

    def plan(self) -> PlannedSet:
        """Describe the set of the text without writing or downloading anything."""
        source = self.source.read()
        if self.tokenizer == "characters" and self.source.pin is not None:
            named = (self.source.files or {}).get("hub", self.source.name)
            raise UsageError(
                "a plan must count the characters of the text, so expected a text on this machine, "
                f"got the data set {named} of the hub: prepare it first"
            )
        vocabulary = count_tokens(self.tokenizer, documents=source.documents())
        return PlannedSet(name=source.name, vocabulary=vocabulary, text_bytes=source.total_bytes)


def find_set(
    reference: str, tokenizer: str | None, *, default: str, warn: Callable[[str], None]
) -> PreparedData | UnpreparedText:
    """Return the prepared set for a reference, or the text from which to prepare the set.

    The reference is a text, the folder of a set, or ``name`` or ``name/tokenizer`` of a set in the
    cache. Without ``tokenizer``, a text gets the ``default`` one.
    """
    path, corpus = read_path(reference), find_corpus(reference)
    folder, own = None, reference.partition("/")[2]
    if is_prepared(path) or (own and not reference.startswith("hf:") and not path.exists()):
        # A reference that names neither a set nor a corpus means a text.
        with suppress(UsageError):
            folder = find_prepared(reference)
    names_tokenizer = corpus is not None and own != "" and "/" not in own
    if (folder is not None or names_tokenizer) and tokenizer is not None:
        raise UsageError(
            f"expected no --tokenizer with a prepared set, got {tokenizer} with {reference}"
        )
    if folder is not None:
        return open_prepared(folder)
    if corpus is not None and path.exists():
        warn(
            f"--data {path} means the corpus {path}; to read the file or folder {path}, give "
            f"--data ./{path}"
        )
    tokenizer = own if names_tokenizer else tokenizer or default
    found = find_source(corpus.name if corpus and names_tokenizer else reference)
    data = _find_reusable(found, tokenizer)
    if data is None:
        return UnpreparedText(found, tokenizer)
    streams = data.about["plan"]["source"]["streams"]
    limits = (one["max_tokens"] for one in streams if one["split"] in (None, "train"))
    limit = next(limits, None)
    if limit is not None and (corpus is None or limit != corpus.max_tokens):
        warn(f"reusing {data.path}, prepared with --max-tokens {limit:,}")
    return data


def _find_reusable(found: FoundSource, tokenizer: str) -> PreparedData | None:
    """Return the prepared set of an unchanged text without parsing the text again.

    The set is looked up under the name of the text, then under that name with a content digest.
    """
    for by_content in (False, True):
        try:
            folder = _folder_of(found, tokenizer, by_content=by_content)
        except UsageError:
            # There is no cache, or the name is not a valid folder name.
            return None
        manifest = read_manifest(folder) if is_prepared(folder) else None
        plan = cast("Any", manifest.about.get("plan")) if manifest else None
        if plan is None:
            continue
        if found.files is not None and not _is_same_text(plan["source"]["files"], found.files):
            continue
        data = open_prepared(folder, manifest=manifest)
        if _is_same_tokenizer(data, tokenizer):
            return data
    return None


def _is_same_text(stored: Any, now: Any) -> bool:
    """Return whether a data set was made from the files ``now``.

    The data set may also have been prepared with some of these files named as validation files.
    """
    before, after = stored or {}, now or {}
    if "hub" in before or "hub" in after:
        return all(
            before.get(key) == after.get(key) for key in ("hub", "configuration", "revision")
        )
    trained, held_out, tested = _files_by_split(before)
    documents, validation, test = _files_by_split(after)
    # The user may have named some of the files, or others, for validation.
    left = [file for file in documents if file not in (held_out or [])]
    return trained == left and tested == test and validation in (None, held_out)


def _is_same_tokenizer(data: PreparedData, reference: str) -> bool:
    stored = data.tokenizer.describe()
    if reference == "characters" or stored["kind"] == "characters":
        # The alphabet depends on the texts.
        return reference == stored["kind"]
    separator = stored["separator"] if stored["kind"] == "library" else ""
    try:
        return load_tokenizer(reference, separator=separator).describe() == stored
    except UsageError:
        return False


def find_share_error(data: PreparedData) -> str | None:
    """Return a warning if the held-out share is far from the requested one, else None."""
    rule = data.about["plan"]["source"]["held_out"]
    if rule is None:
        return None
    share: float = rule["share"]
    held_out, rest = (data.splits[name].text_bytes for name in ("validation", "train"))
    if share_error(share, held_out, rest) <= MAX_SHARE_ERROR:
        return None
    return (
        f"{held_out / (held_out + rest):.2g} of the text is held out, not {share:.2g}, because "
        "only whole documents can be held out and the documents are few or of unequal size; name "
        "the validation documents with `qkvary data prepare --validation`"
    )
