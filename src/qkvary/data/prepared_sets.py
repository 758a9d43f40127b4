"""Finds, reuses or prepares the data set (tokenized text) of a text or a name.

- Training calls ``prepare_text``. A training plan calls ``plan_text``, which writes nothing.
- A study expects one particular data set. ``find_prepared`` returns the folder of an existing data
  set. ``ensure_prepared`` prepares a named corpus if necessary, and verifies the fingerprint.
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
from qkvary.text.progress_line import ignore

DEFAULT_TOKENIZER = "gpt2"
DIGITS = 8
"""Number of hexadecimal digits in a folder's name that identify the documents and options."""


def default_folder(name: str, tokenizer: str) -> Path:
    """Return the default folder of a set: ``data/<name>-<tokenizer>`` of the cache."""
    cache = cache_directory()
    if cache is None:
        raise UsageError(
            "expected a cache directory, got none: set QKVARY_CACHE, or name a folder with "
            "`qkvary data prepare ... --out DIR`"
        )
    return cache / "data" / f"{plain_name(name)}-{tokenizer}"


def _default_folders(found: FoundSource, tokenizer: str) -> tuple[Path, Path]:
    """Return the default folder of a source's set, and a second one if another set is in it."""
    digits = hashlib.sha256(encode(found.content).encode()).hexdigest()[:DIGITS]
    name = name_tokenizer(tokenizer)
    return default_folder(found.name, name), default_folder(f"{found.name}-{digits}", name)


def find_prepared(text: str) -> Path:
    """Return the folder of a prepared set.

    The text is a path, ``name/tokenizer``, or ``name`` alone. ``name`` alone means the set with
    GPT-2's tokenizer. The exact name of a corpus always means the corpus, even if a folder has that
    name.
    """
    path, corpus = read_path(text), find_corpus(text)
    if corpus is None and is_prepared(path):
        return path
    name, _, tokenizer = text.partition("/")
    name, tokenizer = corpus.name if corpus else name, tokenizer or DEFAULT_TOKENIZER
    if not name or "/" in tokenizer or (corpus is None and path.exists()):
        raise UsageError(
            f"expected a prepared set, got {text}: run `qkvary data prepare {text}` and give the "
            "folder that it writes"
        )
    folder = default_folder(name, plain_name(tokenizer))
    if not is_prepared(folder):
        advice = f": run `qkvary data prepare {name} --tokenizer {tokenizer}`"
        raise UsageError(
            f"expected a prepared set, got {text}, which is neither a folder nor in the cache"
            f"{advice if corpus else ''}"
        )
    return folder


def ensure_prepared(
    text: str, sha256: str | None = None, report: Callable[[str], None] = ignore
) -> Path:
    """Return the folder of a prepared set; prepare it first if it belongs to a named corpus.

    If ``sha256`` is given, the set must have this fingerprint.
    """
    corpus = find_corpus(text)
    # A text of the hub has no place; it may be longer, and would give another set.
    place = None if corpus is None else corpus.local
    try:
        folder = find_prepared(text)
    except UsageError:
        if corpus is None:
            raise
        if sha256 and place is not None and find_local(corpus) is None:
            raise UsageError(
                f"expected the data set {text} with fingerprint {sha256[:12]}, or its text, got "
                f"neither: put the text at {place} below QKVARY_DATA"
            ) from None
        report(f"preparing {text}")
        folder = prepare_source(corpus.name, text.partition("/")[2] or DEFAULT_TOKENIZER).path
    if sha256 and (found := read_fingerprint(folder)) != sha256:
        remedy = "prepare the expected set there"
        if place is not None:
            remedy = (
                f"remove that folder, and put the expected set's original text at {place} below "
                "QKVARY_DATA"
            )
        raise UsageError(
            f"expected the data set {text} with fingerprint {sha256[:12]} in {folder}, got "
            f"{found[:12]}: {remedy}"
        )
    return folder


def prepare_source(
    text: str | FoundSource,
    tokenizer: str = DEFAULT_TOKENIZER,
    *,
    options: SourceOptions | None = None,
    out: Path | None = None,
    separator: str = "",
    workers: int | None = None,
    on_progress: OnProgress = lambda _bytes, _total, _note: None,
) -> PreparedData:
    """Prepare a corpus, a file, a folder or ``hf:owner/name``, or open the existing set.

    The default folder may hold a set with other documents or options. In this case, the name of the
    folder includes a digest of the documents and the options.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"expected at least one worker, got {workers}")
    found = find_source(text, options) if isinstance(text, str) else text
    # A name that is no source is refused before a folder is named after it.
    source, folder = found.read(), out
    if folder is None:
        folder, other = _default_folders(found, tokenizer)
        if _stored_source(folder)[0] not in (None, source.describe()):
            folder = other
    if found.pin is not None:
        source = found.pin(_stored_source(folder)[1])
    return prepare(
        source,
        load_tokenizer(tokenizer, documents=source.documents(), separator=separator),
        folder,
        tokenizer_name=name_tokenizer(tokenizer),
        workers=workers,
        on_progress=on_progress,
    )


def _stored_source(folder: Path) -> tuple[Any, str | None]:
    """Return the stored description of a set's documents, and their commit on the hub."""
    plan = stored_plan(folder)
    if plan is None:
        return None, None
    source = cast("dict[str, Any]", plan["source"])
    if not isinstance(source["files"], dict) or "commit" not in source["files"]:
        return source, None
    files = dict(source["files"])
    commit = files.pop("commit")
    return {**source, "files": files}, commit


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSet:
    """The data set of a text. The data set need not be prepared yet."""

    name: str
    vocabulary: int
    prepared: PreparedData | None = None
    """The data set, if it is prepared."""
    text_bytes: int | None = None
    """The size of the text in bytes. None if it is unknown or the set is prepared."""

    @classmethod
    def of(cls, data: PreparedData) -> Self:
        """Return the plan of a set that is already prepared."""
        return cls(name=data.name, vocabulary=data.vocabulary, prepared=data)

    def require_row(self, context: int) -> None:
        """Raise a ``UsageError`` if the training text is too short for a row of ``context`` tokens.

        A text that is not prepared is refused only if its size shows that it is too short.
        """
        # A text that is not prepared has at most one token per byte, and one per document, each of
        # which has a byte.
        most = None if self.text_bytes is None else 2 * self.text_bytes
        tokens = most if self.prepared is None else self.prepared.splits["train"].tokens
        if tokens is not None and tokens <= context:
            raise UsageError(
                f"expected a text that is longer than one row of {context:,} tokens, got "
                f"{self.name}, which has at most {tokens:,} tokens: give a longer text or a "
                "smaller --context"
            )


def prepare_text(
    text: str,
    tokenizer: str | None,
    default: str,
    warn: Callable[[str], None],
    on_progress: OnProgress,
    check: Callable[[], None] = ignore,
) -> PreparedData:
    """Return the data set of a text. If there is none, call ``check`` and then prepare the set.

    ``text`` is a text that :func:`prepare_source` reads, the folder of a data set, or the ``name``
    or ``name/tokenizer`` of a data set in the cache. Without ``tokenizer``, a text is encoded with
    the tokenizer ``default``.
    """
    found = _find_set(text, tokenizer, default, warn)
    if isinstance(found, PreparedData):
        return found
    check()
    return prepare_source(*found, on_progress=on_progress)


def plan_text(
    text: str, tokenizer: str | None, default: str, warn: Callable[[str], None]
) -> PlannedSet:
    """Describe the data set that :func:`prepare_text` would return, without writing anything."""
    found = _find_set(text, tokenizer, default, warn)
    if isinstance(found, PreparedData):
        return PlannedSet.of(found)
    if found[1] == "characters" and found[0].pin is not None:
        raise UsageError(
            "expected a text on this machine, because a plan counts its characters, got "
            f"{text}, a data set of the hub: prepare the data set first"
        )
    source, chosen = found[0].read(), found[1]
    vocabulary = count_tokens(chosen, documents=source.documents())
    return PlannedSet(name=source.name, vocabulary=vocabulary, text_bytes=source.total_bytes)


def _find_set(
    text: str, tokenizer: str | None, default: str, warn: Callable[[str], None]
) -> PreparedData | tuple[FoundSource, str]:
    """Return the prepared set of a text; if there is none, its source and the tokenizer to use."""
    path, corpus, own = read_path(text), find_corpus(text), text.partition("/")[2]
    folder = None
    if is_prepared(path) or (own and not text.startswith("hf:") and not path.exists()):
        # A text that names no prepared set may still be a source.
        with suppress(UsageError):
            folder = find_prepared(text)
    names_tokenizer = corpus is not None and own != ""
    if tokenizer is not None and (folder is not None or names_tokenizer):
        raise UsageError(
            f"expected no --tokenizer with a prepared set, got {tokenizer} with {text}"
        )
    if folder is not None:
        return open_prepared(folder)
    if corpus is not None and path.exists():
        warn(
            f"--data {path} means the corpus {path}; to read the file or folder {path}, give "
            f"--data ./{path}"
        )
    tokenizer = own if names_tokenizer else tokenizer or default
    found = find_source(corpus.name if corpus and names_tokenizer else text)
    data = _find_reusable(found, tokenizer)
    if data is None:
        return found, tokenizer
    streams = data.about["plan"]["source"]["streams"]
    limits = (one["max_tokens"] for one in streams if one["split"] in (None, "train"))
    limit = next(limits, None)
    if limit is not None and (corpus is None or limit != corpus.max_tokens):
        warn(f"reusing {data.path}, prepared with --max-tokens {limit:,}")
    return data


def _find_reusable(found: FoundSource, tokenizer: str) -> PreparedData | None:
    """Return an existing set with the same files and tokenizer, or None; parses no text."""
    try:
        folders = _default_folders(found, tokenizer)
    except UsageError:
        # There is no cache, or the name is not a valid folder name.
        return None
    for folder in filter(is_prepared, folders):
        manifest = read_manifest(folder)
        plan = cast("Any", manifest.about.get("plan"))
        if plan is None:
            continue
        if found.files is not None and not _is_same_text(plan["source"]["files"], found.files):
            continue
        data = open_prepared(folder, manifest=manifest)
        if _is_same_tokenizer(data, tokenizer):
            return data
    return None


def _files_by_split(listed: Any) -> tuple[Any, Any, Any]:
    """Return the stored files for training, validation and test, each None if there are none."""
    # A text that was split is a whole file.
    files = listed.get("files", listed)
    return files.get("train", files.get("documents")), files.get("validation"), files.get("test")


def _is_same_text(stored: Any, files: Any) -> bool:
    """Return whether a data set was prepared from the files of a text.

    Some of the files may have been named as validation files.
    """
    if "hub" in stored or "hub" in files:
        return all(
            stored.get(key) == files.get(key) for key in ("hub", "configuration", "revision")
        )
    trained, held_out, tested = _files_by_split(stored)
    documents, validation, test = _files_by_split(files)
    # The user may have named some of the files, or others, for validation.
    left = [file for file in documents if file not in (held_out or [])]
    return trained == left and tested == test and validation in (None, held_out)


def _is_same_tokenizer(data: PreparedData, tokenizer: str) -> bool:
    stored = data.tokenizer.describe()
    if tokenizer == "characters" or stored["kind"] == "characters":
        # The alphabet depends on the texts.
        return tokenizer == stored["kind"]
    separator = stored["separator"] if stored["kind"] == "library" else ""
    try:
        return load_tokenizer(tokenizer, separator=separator).describe() == stored
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
        f"{held_out / (held_out + rest):.2g} of the text is held out, not {share:.2g}: only whole "
        "documents can be held out, and there are few documents or their sizes differ. To choose "
        "the validation documents, use `qkvary data prepare --validation`"
    )
