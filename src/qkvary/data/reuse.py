"""Reuse of prepared sets: find the set of a text or a name, or prepare one.

A set is reused while its source files are unchanged. Its preparation options (token limit, field,
held-out share) are kept as they were chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from qkvary.data.corpora import CORPORA, canonical_reference, identify_source
from qkvary.data.preparation import PreparationSettings
from qkvary.data.prepared import PreparedData, is_prepared, open_prepared
from qkvary.data.prepared_sets import default_folder, find_prepared, prepare_corpus
from qkvary.data.shard_groups import finished_plan
from qkvary.data.tokenizer_files import load_tokenizer, name_tokenizer
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import JsonValue, encode

_FREE = ("train", "documents")
"""The keys of training files in a list of files."""
_HELD_OUT = ("validation", "test")


def find_or_prepare(
    reference: str,
    tokenizer: str | None,
    *,
    default: str,
    warn: Callable[[str], None],
    settings: PreparationSettings | None = None,
) -> PreparedData:
    """Return the existing set of a text, or prepare it.

    Args:
        reference: As for :func:`open_source`, or ``name`` or ``name/tokenizer`` of a set in the
            cache.
        tokenizer: As for :func:`load_tokenizer`, if the user named one.
        default: The tokenizer otherwise.
        warn: Called with a message if the reused set has a token limit.
        settings: The settings of the preparation.

    Raises:
        UsageError: if the text, set or tokenizer does not exist.
        QkvaryError: as :func:`prepare_corpus`.
    """
    reference = canonical_reference(reference)
    name, _, own = reference.partition("/")
    if _may_name_a_set(reference):
        if tokenizer is not None:
            raise UsageError(
                f"expected no --tokenizer with a prepared set, got {tokenizer} with {reference}"
            )
        folder = _find_named(reference)
        if folder is not None:
            return open_prepared(folder)
        reference, tokenizer = name, own
    tokenizer = tokenizer or default
    existing = find_reusable(reference, tokenizer)
    if existing is None:
        by_content = reference not in CORPORA
        return prepare_corpus(reference, tokenizer, by_content=by_content, settings=settings)
    limit, corpus = _limit_of(existing), CORPORA.get(reference)
    if limit is not None and (corpus is None or limit != corpus.max_tokens):
        warn(f"reusing {existing.path}, prepared with --max-tokens {limit:,}")
    return existing


def find_reusable(reference: str, tokenizer: str) -> PreparedData | None:
    """Return the set under the text's own name if it was prepared from the text as it is now.

    Args:
        reference: As for :func:`open_source`, or the name of a set in the cache.
        tokenizer: As for :func:`load_tokenizer`.

    Raises:
        UsageError: if the reference is invalid.
        DamagedError: if the set is damaged.
    """
    found = identify_source(reference)
    if found is None:
        return None
    name, files = found
    folder = _find_folder(name, tokenizer)
    plan = None if folder is None else finished_plan(folder)
    if folder is None or plan is None:
        return None
    if files is not None and not _is_same_text(plan["source"]["files"], files):
        return None
    data = open_prepared(folder)
    return data if _is_same_tokenizer(data, tokenizer) else None


def _find_folder(name: str, tokenizer: str) -> Path | None:
    """Return the folder in which ``prepare_corpus`` stores a set, if the set exists."""
    try:
        folder = default_folder(name, name_tokenizer(tokenizer))
    except UsageError:
        # There is no cache, or the name is not valid for a folder.
        return None
    return folder if is_prepared(folder) else None


def _may_name_a_set(reference: str) -> bool:
    """Return whether a reference is ``name/tokenizer`` of a cached set or of a corpus."""
    name, _, tokenizer = reference.partition("/")
    if not tokenizer or reference.startswith("hf:") or Path(reference).expanduser().exists():
        return False
    return (name in CORPORA and "/" not in tokenizer) or _find_named(reference) is not None


def _find_named(reference: str) -> Path | None:
    """Return the folder of a set by its name in the cache, if it exists."""
    try:
        return find_prepared(reference)
    except UsageError:
        return None


def _is_same_text(stored: JsonValue, now: JsonValue) -> bool:
    """Return whether a set was made of exactly these files and trains on no held-out file."""
    before, after = _parts_of(stored), _parts_of(now)
    if "hub" in before or "hub" in after:
        return all(
            before.get(key) == after.get(key) for key in ("hub", "configuration", "revision")
        )
    held_out = {*_entries(before, *_HELD_OUT), *_entries(after, *_HELD_OUT)}
    if not held_out.isdisjoint(_entries(before, *_FREE)):
        return False
    # The validation documents may be from another source.
    return _entries(after, *_FREE, *_HELD_OUT) in (
        _entries(before, *_FREE, *_HELD_OUT),
        _entries(before, *_FREE, "test"),
    )


def _parts_of(files: JsonValue) -> dict[str, Any]:
    """Return the files of a source; for a text that was split, those of the whole text."""
    listed = cast("dict[str, Any]", files) if isinstance(files, dict) else {}
    return _parts_of(listed["files"]) if "files" in listed else listed


def _entries(parts: dict[str, Any], *names: str) -> list[str]:
    return sorted(encode(entry) for name in names for entry in parts.get(name, []))


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


def _limit_of(data: PreparedData) -> int | None:
    """Return the training token limit of a set."""
    streams = data.about["plan"]["source"]["streams"]
    limits = (one["max_tokens"] for one in streams if one["split"] in (None, "train"))
    return next(limits, None)
