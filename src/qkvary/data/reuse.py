"""Reuse of prepared sets: find the set of a text or a name, or prepare one.

A set is reused while its source files are unchanged. Its preparation options (token limit, field,
held-out share) are kept as they were chosen.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from qkvary.data.corpora import CORPORA, canonical_reference, identify_source, open_source
from qkvary.data.preparation import PreparationSettings
from qkvary.data.prepared import PreparedData, is_prepared, open_prepared
from qkvary.data.prepared_sets import (
    TRAINING,
    choose_folder,
    default_folder,
    find_prepared,
    list_entries,
    parts_of,
    prepare_corpus,
)
from qkvary.data.shard_groups import finished_plan
from qkvary.data.splits import explain_share_error
from qkvary.data.tokenizer_files import count_tokens, load_tokenizer, name_tokenizer
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import JsonValue

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
    named, reference, tokenizer = _resolve(reference, tokenizer, default)
    if named is not None:
        return named
    existing = find_reusable(reference, tokenizer)
    if existing is None:
        by_content = reference not in CORPORA
        return prepare_corpus(reference, tokenizer, by_content=by_content, settings=settings)
    _warn_of_limit(existing, reference, warn)
    return existing


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSet:
    """The set of a text, which need not be prepared yet."""

    name: str
    """The name of the set."""
    vocabulary: int
    """The size of its vocabulary."""
    data: PreparedData | None
    """The set, if it is prepared."""
    text_bytes: int | None = None
    """The bytes of the text, if it is not prepared and they are known."""

    @classmethod
    def of(cls, data: PreparedData) -> Self:
        """Return a set that is prepared."""
        return cls(name=data.name, vocabulary=data.tokenizer.vocabulary, data=data)


def plan_set(
    reference: str, tokenizer: str | None, *, default: str, warn: Callable[[str], None]
) -> PlannedSet:
    """Return the set that :func:`find_or_prepare` would return, without writing or downloading.

    The arguments are those of that function.

    Raises:
        UsageError: if the text, set or tokenizer does not exist, or the vocabulary depends on
            documents that are not on this machine.
    """
    found, reference, tokenizer = _resolve(reference, tokenizer, default)
    if found is None:
        found = find_reusable(reference, tokenizer)
        if found is not None:
            _warn_of_limit(found, reference, warn)
    if found is None:
        source = open_source(reference)
        folder = choose_folder(source, tokenizer, by_content=reference not in CORPORA)
        if not is_prepared(folder):
            if tokenizer == "characters" and source.pin is not None:
                raise UsageError(
                    "expected a text on this machine for the alphabet of a plan, got "
                    f"{reference}: prepare it first"
                )
            vocabulary = count_tokens(tokenizer, documents=source.documents())
            return PlannedSet(
                name=source.name, vocabulary=vocabulary, data=None, text_bytes=source.total_bytes
            )
        found = open_prepared(folder)
    return PlannedSet.of(found)


def _resolve(
    reference: str, tokenizer: str | None, default: str
) -> tuple[PreparedData | None, str, str]:
    """Return the set that a reference names, or the text and tokenizer that it means."""
    reference = canonical_reference(reference)
    name, _, own = reference.partition("/")
    if own and not reference.startswith("hf:") and not Path(reference).expanduser().exists():
        folder = None
        # A reference that names neither a set nor a corpus is that of a text.
        with suppress(UsageError):
            folder = find_prepared(reference)
        if folder is not None or (name in CORPORA and "/" not in own):
            if tokenizer is not None:
                raise UsageError(
                    f"expected no --tokenizer with a prepared set, got {tokenizer} with {reference}"
                )
            if folder is not None:
                return open_prepared(folder), reference, own
            reference, tokenizer = name, own
    return None, reference, tokenizer or default


def find_reusable(reference: str, tokenizer: str) -> PreparedData | None:
    """Return the set under the text's own name if the text has not changed since it was prepared.

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
    try:
        folder = default_folder(name, name_tokenizer(tokenizer))
    except UsageError:
        # There is no cache, or the name is not valid for a folder.
        return None
    plan = finished_plan(folder) if is_prepared(folder) else None
    if plan is None:
        return None
    if files is not None and not _is_same_text(plan["source"]["files"], files):
        return None
    data = open_prepared(folder)
    return data if _is_same_tokenizer(data, tokenizer) else None


def _is_same_text(stored: JsonValue, now: JsonValue) -> bool:
    """Return whether a set was made of exactly these files and trains on no held-out file."""
    before, after = parts_of(stored), parts_of(now)
    if "hub" in before or "hub" in after:
        return all(
            before.get(key) == after.get(key) for key in ("hub", "configuration", "revision")
        )
    held_out = {*list_entries(before, *_HELD_OUT), *list_entries(after, *_HELD_OUT)}
    if not held_out.isdisjoint(list_entries(before, *TRAINING)):
        return False
    # The validation documents may be from another source.
    return list_entries(after, *TRAINING, *_HELD_OUT) in (
        list_entries(before, *TRAINING, *_HELD_OUT),
        list_entries(before, *TRAINING, "test"),
    )


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


def _warn_of_limit(data: PreparedData, reference: str, warn: Callable[[str], None]) -> None:
    streams, corpus = data.about["plan"]["source"]["streams"], CORPORA.get(reference)
    limits = (one["max_tokens"] for one in streams if one["split"] in (None, "train"))
    limit = next(limits, None)
    if limit is not None and (corpus is None or limit != corpus.max_tokens):
        warn(f"reusing {data.path}, prepared with --max-tokens {limit:,}")


def find_share_error(data: PreparedData) -> str | None:
    """Return a warning if the held-out share is far from the requested one, else None."""
    rule = data.about["plan"]["source"]["held_out"]
    if rule is None:
        return None
    held_out, rest = (data.splits[name].text_bytes for name in ("validation", "train"))
    return explain_share_error(rule["share"], held_out, rest)
