"""Sets that were prepared beforehand: which one is meant by a text, or by a name.

A set stands for a text as long as it was made of what the text is now. How it was made (up to how
many tokens, of which column, with what held out) was the choice of whoever prepared it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from qkvary.data.corpora import CORPORA, find_texts
from qkvary.data.places import default_folder, find_prepared, prepare_corpus
from qkvary.data.portions import finished_plan
from qkvary.data.preparation import Settings
from qkvary.data.prepared import PreparedData, is_prepared, open_prepared
from qkvary.data.tokenizer_files import load_tokenizer, name_tokenizer
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import JsonValue, encode

_FREE = ("train", "documents")
"""What may be trained on, as a list of files names it."""
_HELD_OUT = ("validation", "test")


def find_or_prepare(
    reference: str,
    tokenizer: str | None,
    *,
    usual: str,
    tell: Callable[[str], None],
    settings: Settings | None = None,
) -> PreparedData:
    """The set of a text: one that was prepared beforehand, else one that is prepared now.

    Args:
        reference: As of :func:`open_source`, or the ``name`` of a set in the cache, or its
            ``name/tokenizer``.
        tokenizer: As of :func:`load_tokenizer`, where a person has named one.
        usual: The one to take otherwise.
        tell: Told of a set that ends before its text does.
        settings: How a set is prepared.

    Raises:
        UsageError: if there is no such text, set or tokenizer.
        QkvaryError: as :func:`prepare_corpus`.
    """
    name, _, own = reference.partition("/")
    if _may_name_a_set(reference):
        if tokenizer is not None:
            raise UsageError(
                f"expected no --tokenizer with a set that is prepared, got {tokenizer} with "
                f"{reference}"
            )
        folder = _find_named(reference)
        if folder is not None:
            return open_prepared(folder)
        reference, tokenizer = name, own
    tokenizer = tokenizer or usual
    earlier = find_earlier(reference, tokenizer)
    if earlier is None:
        by_content = reference not in CORPORA
        return prepare_corpus(reference, tokenizer, by_content=by_content, settings=settings)
    limit, corpus = _limit_of(earlier), CORPORA.get(reference)
    if limit is not None and (corpus is None or limit != corpus.max_tokens):
        tell(f"{earlier.path} is taken, prepared with --max-tokens {limit:,}")
    return earlier


def find_earlier(reference: str, tokenizer: str) -> PreparedData | None:
    """The set that was prepared of a text as it is now, under the text's own name.

    Args:
        reference: As of :func:`open_source`, or the name of a set in the cache.
        tokenizer: As of :func:`load_tokenizer`.

    Raises:
        UsageError: if the reference cannot be one.
        DamagedError: if the set is damaged.
    """
    found = find_texts(reference)
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
    """The folder in which ``prepare_corpus`` keeps a set, if there is such a set."""
    try:
        folder = default_folder(name, name_tokenizer(tokenizer))
    except UsageError:
        # There is no cache, or no folder is called so.
        return None
    return folder if is_prepared(folder) else None


def _may_name_a_set(reference: str) -> bool:
    """Whether a reference is ``name/tokenizer`` of a set in the cache, or of one of a corpus."""
    name, _, tokenizer = reference.partition("/")
    if not tokenizer or reference.startswith("hf:") or Path(reference).expanduser().exists():
        return False
    return (name in CORPORA and "/" not in tokenizer) or _find_named(reference) is not None


def _find_named(reference: str) -> Path | None:
    """The folder of a set by its name in the cache, if there is such a set."""
    try:
        return find_prepared(reference)
    except UsageError:
        return None


def _is_same_text(stored: JsonValue, now: JsonValue) -> bool:
    """Whether a set was made of just these texts, and trains on none that is held out by name."""
    before, after = _parts_of(stored), _parts_of(now)
    if "hub" in before or "hub" in after:
        return all(
            before.get(key) == after.get(key) for key in ("hub", "configuration", "revision")
        )
    held_out = {*_entries(before, *_HELD_OUT), *_entries(after, *_HELD_OUT)}
    if not held_out.isdisjoint(_entries(before, *_FREE)):
        return False
    # Documents for validation may have come from elsewhere.
    return _entries(after, *_FREE, *_HELD_OUT) in (
        _entries(before, *_FREE, *_HELD_OUT),
        _entries(before, *_FREE, "test"),
    )


def _parts_of(files: JsonValue) -> dict[str, Any]:
    """What is listed of a source; where one text was cut, of the whole of it."""
    listed = cast("dict[str, Any]", files) if isinstance(files, dict) else {}
    return _parts_of(listed["files"]) if "files" in listed else listed


def _entries(parts: dict[str, Any], *names: str) -> list[str]:
    return sorted(encode(entry) for name in names for entry in parts.get(name, []))


def _is_same_tokenizer(data: PreparedData, reference: str) -> bool:
    stored = data.tokenizer.describe()
    if reference == "characters" or stored["kind"] == "characters":
        # Its alphabet is that of the texts.
        return reference == stored["kind"]
    separator = stored["separator"] if stored["kind"] == "library" else ""
    try:
        return load_tokenizer(reference, separator=separator).describe() == stored
    except UsageError:
        return False


def _limit_of(data: PreparedData) -> int | None:
    """The tokens for training up to which a set was prepared."""
    streams = data.about["plan"]["source"]["streams"]
    limits = (one["max_tokens"] for one in streams if one["split"] in (None, "train"))
    return next(limits, None)
