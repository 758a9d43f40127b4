"""Prepared sets by name: their location, and their preparation on first use."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from qkvary.data.corpora import CORPORA, Corpus, canonical_reference, find_local, open_source
from qkvary.data.preparation import PreparationSettings, pin_source, prepare
from qkvary.data.prepared import PreparedData, is_prepared, read_fingerprint
from qkvary.data.shard_groups import finished_plan, unfinished_plan
from qkvary.data.sources import Source, SourceOptions
from qkvary.data.tokenizer_files import load_tokenizer, name_tokenizer, plain_name
from qkvary.storage.errors import UsageError
from qkvary.storage.folders import cache_directory
from qkvary.storage.jsonvalues import JsonValue, encode

DEFAULT_TOKENIZER = "gpt2"
TRAINING = ("train", "documents")
"""The keys of training files in a list of files."""


def default_folder(name: str, tokenizer: str) -> Path:
    """Return the default folder of a set: ``data/<name>-<tokenizer>`` of the cache.

    Raises:
        UsageError: if the user has no cache directory.
    """
    cache = cache_directory()
    if cache is None:
        raise UsageError(
            "expected a cache directory, got none: set QKVARY_CACHE, or name a folder with "
            "`qkvary data prepare ... --out DIR`"
        )
    return cache / "data" / f"{plain_name(name)}-{tokenizer}"


def find_prepared(reference: str) -> Path:
    """Return the folder of a prepared set without opening it.

    Args:
        reference: Its path, or ``name/tokenizer`` of a set in the cache; ``name`` alone means
            ``name/gpt2``.

    Raises:
        UsageError: if it does not exist; the message says how to prepare it.
    """
    path = Path(reference).expanduser()
    if is_prepared(path):
        return path
    reference = canonical_reference(reference)
    name, _, tokenizer = reference.partition("/")
    tokenizer = tokenizer or DEFAULT_TOKENIZER
    if name and "/" not in tokenizer and not path.exists():
        folder = default_folder(name, plain_name(tokenizer))
        if is_prepared(folder):
            return folder
        known = name in CORPORA
        raise UsageError(
            f"expected a prepared set, got {reference}, which is neither a folder nor in the cache"
            + (f": run `qkvary data prepare {name} --tokenizer {tokenizer}`" if known else "")
        )
    raise UsageError(
        f"expected a prepared set, got {reference}: run `qkvary data prepare {reference}` and "
        "give its folder"
    )


def ensure_prepared(reference: str) -> Path:
    """Return the folder of a prepared set; prepare it first if it belongs to a named corpus.

    Args:
        reference: As for :func:`find_prepared`.

    Raises:
        UsageError: if neither the set nor the corpus exists.
        QkvaryError: as :func:`prepare_corpus`.
    """
    reference = canonical_reference(reference)
    name, _, tokenizer = reference.partition("/")
    if Path(reference).expanduser().exists() or name not in CORPORA:
        return find_prepared(reference)
    tokenizer = tokenizer or DEFAULT_TOKENIZER
    folder = default_folder(name, plain_name(tokenizer))
    # A complete set no longer needs its corpus.
    return folder if is_prepared(folder) else prepare_corpus(name, tokenizer).path


def prepare_corpus(
    name: str,
    tokenizer: str = DEFAULT_TOKENIZER,
    *,
    choices: SourceOptions | None = None,
    out: Path | None = None,
    separator: str = "",
    by_content: bool = False,
    settings: PreparationSettings | None = None,
) -> PreparedData:
    """Prepare a corpus, or open the existing set.

    Args:
        name: As for :func:`open_source`: a corpus, a file, a folder, or ``hf:owner/name``.
        tokenizer: As for :func:`load_tokenizer`.
        choices: Options of the source.
        out: The folder of the set; by default ``default_folder``.
        separator: The token after every document, if the tokenizer's file does not name it.
        by_content: Whether the folder's name always depends on the documents too; that of a file
            or folder does if another one has the name.
        settings: The settings of the preparation.

    Raises:
        UsageError: if the corpus or tokenizer does not exist.
        BusyError: if another process prepares the same set.
        QkvaryError: as :func:`prepare`.
    """
    source = open_source(name, choices)
    # Two files of one name are two sets.
    is_own = name not in CORPORA and source.pin is None
    by_content = by_content or (is_own and _is_taken(source, tokenizer))
    folder = out or choose_folder(source, tokenizer, by_content=by_content)
    # Pinned first, because the alphabet comes from the documents.
    source = pin_source(source, folder)
    return prepare(
        source,
        load_tokenizer(tokenizer, documents=source.documents(), separator=separator),
        folder,
        tokenizer_name=name_tokenizer(tokenizer),
        settings=settings,
    )


def choose_folder(source: Source, tokenizer: str, *, by_content: bool) -> Path:
    """Return the folder of a source's set in the cache.

    Args:
        source: The documents.
        tokenizer: As for :func:`load_tokenizer`.
        by_content: As for :func:`prepare_corpus`.

    Raises:
        UsageError: if there is no cache, or a name is not valid for a folder.
    """
    # Eight digits that change with the documents.
    digits = hashlib.sha256(encode(source.describe()).encode()).hexdigest()[:8]
    name = f"{source.name}-{digits}" if by_content else source.name
    return default_folder(name, name_tokenizer(tokenizer))


def list_entries(files: JsonValue, *names: str) -> list[str]:
    """Return the files of some parts of a source; a text that was split counts as a whole.

    Args:
        files: The files of the source.
        names: The parts.
    """
    parts = parts_of(files)
    return sorted(encode(entry) for name in names for entry in parts.get(name, []))


def parts_of(files: JsonValue) -> dict[str, Any]:
    """Return the files of a source by part; a text that was split counts as a whole."""
    listed = cast("dict[str, Any]", files) if isinstance(files, dict) else {}
    return parts_of(listed["files"]) if "files" in listed else listed


def _is_taken(source: Source, tokenizer: str) -> bool:
    """Return whether the name of a source's folder belongs to other training files."""
    folder = choose_folder(source, tokenizer, by_content=False)
    finished = finished_plan(folder)
    plan = unfinished_plan(folder) if finished is None else finished
    if plan is None:
        return False
    return list_entries(plan["source"]["files"], *TRAINING) != list_entries(source.files, *TRAINING)


def check_prepared(reference: str, sha256: str, report: Callable[[str], None]) -> None:
    """Check that a prepared set is the expected one; prepare it if its text is on this machine.

    Args:
        reference: As for :func:`find_prepared`.
        sha256: The expected fingerprint.
        report: Called with a message before the set is prepared.

    Raises:
        UsageError: if it is another set, or cannot be prepared.
        QkvaryError: as :func:`ensure_prepared`.
    """
    corpus = _local_corpus(reference)
    try:
        folder = find_prepared(reference)
    except UsageError:
        if corpus is not None and find_local(corpus) is None:
            raise UsageError(
                f"expected the data set {sha256[:12]} of {reference}, got neither it nor its "
                f"text: put the text at {corpus.local} below QKVARY_DATA"
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


def _local_corpus(reference: str) -> Corpus | None:
    """Return the corpus of a pinned set, if its text is local.

    The text on the hub may be longer, which gives another set.
    """
    corpus = CORPORA.get(canonical_reference(reference).partition("/")[0])
    is_path = Path(reference).expanduser().exists()
    return None if corpus is None or corpus.local is None or is_path else corpus
