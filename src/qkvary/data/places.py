"""Prepared sets by name: where they are kept, and how one is made when it is first asked for."""

from __future__ import annotations

import hashlib
from pathlib import Path

from qkvary.data.corpora import CORPORA, open_source
from qkvary.data.downloads import cache_directory
from qkvary.data.preparation import Settings, pin_source, prepare
from qkvary.data.prepared import PreparedData, is_prepared
from qkvary.data.sources import Choices, Source
from qkvary.data.tokenizer_files import load_tokenizer, name_tokenizer, plain_name
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import encode

DEFAULT_TOKENIZER = "gpt2"


def default_folder(name: str, tokenizer: str) -> Path:
    """Where a set is kept if nobody says otherwise: ``data/<name>-<tokenizer>`` of the cache.

    Raises:
        UsageError: if the user has no folder for caches.
    """
    cache = cache_directory()
    if cache is None:
        raise UsageError(
            "there is no folder for caches: set QKVARY_CACHE, or name a folder with "
            "`qkvary data prepare ... --out DIR`"
        )
    return cache / "data" / f"{plain_name(name)}-{tokenizer}"


def find_prepared(reference: str) -> Path:
    """The folder of a prepared set; it is not opened.

    Args:
        reference: Its path, or ``name/tokenizer`` of a set in the cache; ``name`` alone means
            ``name/gpt2``.

    Raises:
        UsageError: if there is none; the message says how to prepare it.
    """
    path = Path(reference).expanduser()
    if is_prepared(path):
        return path
    name, _, tokenizer = reference.partition("/")
    tokenizer = tokenizer or DEFAULT_TOKENIZER
    if name and "/" not in tokenizer and not path.exists():
        folder = default_folder(name, plain_name(tokenizer))
        if is_prepared(folder):
            return folder
        known = name in CORPORA
        raise UsageError(
            f"expected a prepared set, got {reference}, which is not prepared"
            + (f": run `qkvary data prepare {name} --tokenizer {tokenizer}`" if known else "")
        )
    raise UsageError(
        f"expected a prepared set, got {reference}: run `qkvary data prepare {reference}` and "
        "give its folder"
    )


def ensure_prepared(reference: str) -> Path:
    """The folder of a prepared set; a corpus that has a name is prepared where it is not yet.

    Args:
        reference: As of :func:`find_prepared`.

    Raises:
        UsageError: if there is no such set, and no such corpus.
        QkvaryError: as :func:`prepare_corpus`.
    """
    name, _, tokenizer = reference.partition("/")
    if Path(reference).expanduser().exists() or name not in CORPORA:
        return find_prepared(reference)
    tokenizer = tokenizer or DEFAULT_TOKENIZER
    folder = default_folder(name, plain_name(tokenizer))
    # A set that is complete does not need its corpus any more.
    return folder if is_prepared(folder) else prepare_corpus(name, tokenizer).path


def prepare_corpus(
    name: str,
    tokenizer: str = DEFAULT_TOKENIZER,
    *,
    choices: Choices | None = None,
    out: Path | None = None,
    separator: str = "",
    by_content: bool = False,
    settings: Settings | None = None,
) -> PreparedData:
    """Prepare a corpus, or open the set that is there already.

    Args:
        name: As of :func:`open_source`: a corpus, a file, a folder, or ``hf:owner/name``.
        tokenizer: As of :func:`load_tokenizer`.
        choices: What else is said about the documents.
        out: Where the set is to be; ``default_folder`` if nobody says.
        separator: The token behind every document, where the tokenizer's file does not say.
        by_content: Whether the set's folder is named by the documents too, so that an edited text
            is another set and not a mistake.
        settings: How it is done.

    Raises:
        UsageError: if there is no such corpus or tokenizer.
        BusyError: if somebody else prepares the same set.
        QkvaryError: as :func:`prepare`.
    """
    source = open_source(name, choices)
    known = f"{source.name}-{_digest(source)}" if by_content else source.name
    folder = out or default_folder(known, name_tokenizer(tokenizer))
    # An alphabet is that of the documents that will be read.
    source = pin_source(source, folder)
    return prepare(
        source,
        load_tokenizer(tokenizer, documents=source.documents(), separator=separator),
        folder,
        tokenizer_name=name_tokenizer(tokenizer),
        settings=settings,
    )


def _digest(source: Source) -> str:
    """Eight digits that change with the documents: an edited text makes another set."""
    return hashlib.sha256(encode(source.describe()).encode()).hexdigest()[:8]
