"""Named corpora: their origin and splits."""

from dataclasses import dataclass, replace
from pathlib import Path

from qkvary.data.checksums import FEATURES_MADE_HERE, TINY_SHAKESPEARE_SHA256
from qkvary.data.files import local_paths
from qkvary.data.hub_documents import HubDocuments, find_commit, parse_hub
from qkvary.data.shakespeare import load_text
from qkvary.data.sources import (
    Source,
    SourceOptions,
    Stream,
    cut_source,
    default_name,
    describe_parts,
    find_parts,
    find_source,
)
from qkvary.data.splits import HeldOut
from qkvary.storage.errors import UsageError
from qkvary.storage.jsonvalues import JsonValue
from qkvary.text.names import find_name, suggest

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
        Corpus(
            name="english-novels",
            # Licence: public domain.
            local="english_novels",
        ),
        Corpus(
            name="tinystories",
            # Licence: CDLA-Sharing-1.0.
            local="tinystories",
            hub="roneneldan/TinyStories",
            hub_validation="validation",
        ),
        Corpus(
            name="wikitext-2",
            # Licence: CC BY-SA 3.0 and GFDL.
            local="wikitext-2",
        ),
        Corpus(
            name=SHIPPED,
            # Licence: public domain.
            share=0.1,
        ),
        Corpus(
            name="slimpajama",
            # Licence: those of its sources.
            hub="cerebras/SlimPajama-627B",
            hub_validation="validation",
            max_tokens=10_000_000_000,
            validation_tokens=10_000_000,
        ),
        Corpus(
            name="openwebtext",
            # Licence: CC0 for the collection.
            hub="Skylion007/openwebtext",
            share=0.0005,
        ),
        Corpus(
            name="fineweb",
            # Licence: ODC-By 1.0.
            hub="HuggingFaceFW/fineweb:sample-10BT",
            share=0.0005,
        ),
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


def identify_source(reference: str) -> tuple[str, JsonValue] | None:
    """Return the default name of a source's set and the list of its files, without reading them.

    There is no list for the name of a set, or a corpus that is not on this machine; ``None`` if the
    reference is neither a source nor a name.
    """
    if reference.startswith("hf:"):
        source = open_source(reference)
        return source.name, source.files
    corpus = CORPORA.get(reference)
    path = Path(reference).expanduser() if corpus is None else find_local(corpus)
    if path is not None and path.exists():
        name = default_name(path) if corpus is None else reference
        return name, describe_parts(path, find_parts(path, SourceOptions()))
    return (reference, None) if corpus is not None or "/" not in reference else None


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
