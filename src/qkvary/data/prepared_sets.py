"""Prepared sets by name or by their text: location, reuse, and preparation on first use.

A set is reused while its source files are unchanged. Its preparation options (token limit, field,
held-out share) are kept as they were chosen.
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
    CORPORA,
    SHARE,
    Source,
    SourceOptions,
    canonical_reference,
    find_local,
    identify_source,
    open_source,
)
from qkvary.data.splits import MAX_SHARE_ERROR, share_error
from qkvary.data.tokenizer_files import count_tokens, load_tokenizer, name_tokenizer, plain_name
from qkvary.storage.environment import cache_directory
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import encode
from qkvary.storage.manifest import read_manifest

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


def find_prepared(reference: str) -> Path:
    """Return the folder of a set by its path, ``name/tokenizer``, or ``name`` alone for GPT-2's."""
    path = Path(reference).expanduser()
    if is_prepared(path):
        return path
    reference = canonical_reference(reference)
    name, _, tokenizer = reference.partition("/")
    tokenizer = tokenizer or DEFAULT_TOKENIZER
    if not name or "/" in tokenizer or path.exists():
        raise UsageError(
            f"expected a prepared set, got {reference}: run `qkvary data prepare {reference}` and "
            "give its folder"
        )
    folder = default_folder(name, plain_name(tokenizer))
    if not is_prepared(folder):
        advice = f": run `qkvary data prepare {name} --tokenizer {tokenizer}`"
        raise UsageError(
            f"expected a prepared set, got {reference}, which is neither a folder nor in the cache"
            f"{advice if name in CORPORA else ''}"
        )
    return folder


def ensure_prepared(reference: str) -> Path:
    """Return the folder of a prepared set; prepare it first if it belongs to a named corpus."""
    try:
        return find_prepared(reference)
    except UsageError:
        name, _, tokenizer = canonical_reference(reference).partition("/")
        if name not in CORPORA or Path(reference).expanduser().exists():
            raise
        return prepare_corpus(name, tokenizer or DEFAULT_TOKENIZER).path


def prepare_corpus(
    name: str,
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

    The default folder is named after the documents too if ``by_content``, and for a file or folder
    if another one has the name.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"expected at least one worker, got {workers}")
    source = open_source(name, choices)
    folder = out or default_folder(source.name, name_tokenizer(tokenizer))
    if out is None and (
        by_content or (name not in CORPORA and _has_other_documents(folder, source))
    ):
        folder = _folder_by_content(source, tokenizer, choices)
    if source.pin is not None:
        plan = stored_plan(folder)
        files = None if plan is None else plan["source"]["files"]
        commit = files.get("commit") if isinstance(files, dict) else None
        # A complete set from a version that did not record commits is kept.
        if commit is not None or not is_prepared(folder):
            source = source.pin(cast("str | None", commit))
    return prepare(
        source,
        load_tokenizer(tokenizer, documents=source.documents(), separator=separator),
        folder,
        tokenizer_name=name_tokenizer(tokenizer),
        workers=workers,
        on_progress=on_progress,
    )


def _folder_by_content(source: Source, tokenizer: str, choices: SourceOptions | None) -> Path:
    """Return the folder in the cache of the set of exactly these files with these options.

    It is found without reading the files for documents, which the description needs.
    """
    chosen = choices or SourceOptions()
    options = [chosen.field, chosen.share(SHARE), chosen.token_limit]
    content = source.describe() if source.pin else [source.files, *options]
    digits = hashlib.sha256(encode(content).encode()).hexdigest()[:DIGITS]
    return default_folder(f"{source.name}-{digits}", name_tokenizer(tokenizer))


def _has_other_documents(folder: Path, source: Source) -> bool:
    """Return whether a folder has the set of another file with the same name."""
    plan = stored_plan(folder)
    if plan is None:
        return False
    return _files_by_split(plan["source"]["files"])[0] != _files_by_split(source.files)[0]


def _files_by_split(listed: Any) -> tuple[Any, Any, Any]:
    """Return the stored files for training, validation and test, each None if there are none."""
    files = listed or {}
    # A text that was split is a whole file.
    files = files.get("files", files)
    return files.get("train", files.get("documents")), files.get("validation"), files.get("test")


def check_prepared(reference: str, sha256: str, report: Callable[[str], None]) -> None:
    """Check that a prepared set is the expected one; prepare it if its text is on this machine."""
    corpus = CORPORA.get(canonical_reference(reference).partition("/")[0])
    if corpus is not None and (corpus.local is None or Path(reference).expanduser().exists()):
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
        "prepare the expected one there"
        if corpus is None
        else "remove that folder, and put the text of the expected one at "
        f"{corpus.local} below QKVARY_DATA"
    )
    raise UsageError(
        f"expected the data set {sha256[:12]} of {reference}, got {found[:12]} in {folder}: "
        f"{remedy}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSet:
    """The set of a text, whether or not it is prepared yet."""

    name: str
    vocabulary: int
    folder: str = ""
    """The folder of the set, if it is prepared."""
    fingerprint: str = ""
    has_test: bool = True
    """Whether the set has a test split; without one, the validation split is scored at the end."""
    data: PreparedData | None = None
    """The set, if it is prepared."""
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
            data=data,
            problem=find_share_error(data),
        )


def find_set(
    reference: str,
    tokenizer: str | None,
    *,
    default: str,
    warn: Callable[[str], None],
    on_progress: OnProgress | None = None,
) -> PlannedSet:
    """Return the existing set of a text; otherwise prepare it, or only plan it without progress.

    The reference is a text, the folder of a set, or ``name`` or ``name/tokenizer`` of a set in the
    cache. A plan writes and downloads nothing.
    """
    found, reference, tokenizer = _find(reference, tokenizer, default, warn)
    if found is None and on_progress is not None:
        found = prepare_corpus(
            reference, tokenizer, by_content=reference not in CORPORA, on_progress=on_progress
        )
    if found is not None:
        return PlannedSet.of(found)
    source = open_source(reference)
    if tokenizer == "characters" and source.pin is not None:
        raise UsageError(
            f"expected a text on this machine for the alphabet of a plan, got {reference}: prepare "
            "it first"
        )
    vocabulary = count_tokens(tokenizer, documents=source.documents())
    return PlannedSet(name=source.name, vocabulary=vocabulary, text_bytes=source.total_bytes)


def _find(
    reference: str, tokenizer: str | None, default: str, warn: Callable[[str], None]
) -> tuple[PreparedData | None, str, str]:
    """Return the existing set, if there is one, and the text and tokenizer of a reference."""
    reference = canonical_reference(reference)
    path, (name, _, own) = Path(reference).expanduser(), reference.partition("/")
    folder = path if is_prepared(path) else None
    of_corpus = False
    if own and not reference.startswith("hf:") and not path.exists():
        of_corpus = name in CORPORA and "/" not in own
        # A reference that names neither a set nor a corpus means a text.
        with suppress(UsageError):
            folder = find_prepared(reference)
    if (folder is not None or of_corpus) and tokenizer is not None:
        raise UsageError(
            f"expected no --tokenizer with a prepared set, got {tokenizer} with {reference}"
        )
    if folder is not None:
        return open_prepared(folder), reference, own
    if of_corpus:
        reference, tokenizer = name, own
    tokenizer = tokenizer or default
    found = _find_reusable(reference, tokenizer)
    if found is not None:
        streams, corpus = found.about["plan"]["source"]["streams"], CORPORA.get(reference)
        limits = (one["max_tokens"] for one in streams if one["split"] in (None, "train"))
        limit = next(limits, None)
        if limit is not None and (corpus is None or limit != corpus.max_tokens):
            warn(f"reusing {found.path}, prepared with --max-tokens {limit:,}")
    return found, reference, tokenizer


def _find_reusable(reference: str, tokenizer: str) -> PreparedData | None:
    """Return the set of a text that has not changed since it was prepared, without reading it.

    It has the text's own name, or the name of its content if it was prepared without options.
    """
    source = identify_source(reference)
    if source is None:
        return None
    try:
        own = default_folder(source.name, name_tokenizer(tokenizer))
    except UsageError:
        # There is no cache, or the name is not a valid folder name.
        return None
    for folder in (own, _folder_by_content(source, tokenizer, None)):
        manifest = read_manifest(folder) if is_prepared(folder) else None
        plan = cast("Any", manifest.about.get("plan")) if manifest else None
        if plan is None:
            continue
        if source.files is not None and not _is_same_text(plan["source"]["files"], source.files):
            continue
        data = open_prepared(folder, manifest=manifest)
        if _is_same_tokenizer(data, tokenizer):
            return data
    return None


def _is_same_text(stored: Any, now: Any) -> bool:
    """Return whether a set was made of exactly these files, with any for validation."""
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
        f"{held_out / (held_out + rest):.2g} of the text is held out, not {share:.2g}: whole "
        "documents are held out, and these are few or differ in size; `qkvary data prepare "
        "--validation` names others"
    )
