"""Finds the JSON files with the claims and the tables of the papers, the poster and the article."""

import difflib
import functools
import json
from collections.abc import Collection, Iterable, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, TypeVar

from qkvary.storage.errors import UsageError
from qkvary.text.names import listed, suggest

_ENDING = ".json"
_File = TypeVar("_File")


def document_names() -> tuple[str, ...]:
    """Return the sorted names of the documents that make claims: papers, poster and article."""
    return tuple(sorted(_documents().values()))


def read_documents(given: Iterable[str]) -> tuple[str, ...]:
    """Return the documents that ``--document`` names; without the option, return all documents.

    The name of a document's folder is accepted too, such as ``overview`` for ``overview-article``.

    Raises:
        UsageError: for an unknown document.
    """
    known = _documents() | {name: name for name in document_names()}
    for name in given:
        if name not in known:
            said = suggest(name, document_names())
            raise UsageError(f"expected a document for --document, got {name!r}; {said}")
    return tuple(dict.fromkeys(known[name] for name in given)) or document_names()


def select_names(
    texts: Iterable[str], names: Iterable[str], documents: Iterable[str], what: str
) -> list[str]:
    """Select names of figures or tables in some documents.

    Return one name for each text: the name that equals the text, or else the only name that ends
    with it. Without texts, return all names in the documents.

    Raises:
        ValueError: if a text fits no name or several names, or if the documents have no names.
    """
    chosen = read_documents(documents)
    own = [name for name in names if name.startswith(tuple(f"{one}-" for one in chosen))]
    if not own:
        raise UsageError(f"expected a document with a {what}, got {listed(chosen)}")
    return [find_by_end(text, own, what) for text in texts] or own


def claims_file(document: str) -> Any:
    """Return the parsed ``claims.json`` of a document."""
    return _choose(document, {one["document"]: one for one in _claims().values()}, "a document")


def published_names() -> tuple[str, ...]:
    """Return the names of all published tables, sorted."""
    return tuple(sorted(_published()))


def published_file(name: str) -> Any:
    """Return the contents of a published table."""
    file = _choose(name, _published(), "a published table")
    return json.loads(file.read_text("utf-8"))


def find_by_end(text: str, names: Collection[str], what: str) -> str:
    """Return the name that equals ``text``, or else the only name that ends with it."""
    if text in names:
        return text
    found = [name for name in names if name.endswith(f"-{text}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"expected one {what}, got {text!r}, which may be {listed(found, 'or')}")
    ends = {name.split("-", count)[-1] for name in names for count in range(name.count("-") + 1)}
    close = difflib.get_close_matches(text, sorted(ends), n=1)
    near = [name for name in names if name.endswith(tuple(close))] if close else []
    said = f"did you mean {listed(near, 'or')}?" if near else suggest(text, names)
    raise ValueError(f"expected a {what}, got {text!r}; {said}")


def _choose(name: str, files: Mapping[str, _File], what: str) -> _File:
    if name not in files:
        raise ValueError(f"expected {what}, got {name!r}; {suggest(name, sorted(files))}")
    return files[name]


@functools.cache
def _claims() -> Mapping[str, Any]:
    """Return a mapping from folder names to the parsed claims of the documents."""
    files = {folder.name: folder / f"claims{_ENDING}" for folder in _folders()}
    return {
        name: json.loads(file.read_text("utf-8")) for name, file in files.items() if file.is_file()
    }


def _documents() -> dict[str, str]:
    """Return a mapping from folder names to document names."""
    return {folder: one["document"] for folder, one in _claims().items()}


@functools.cache
def _published() -> Mapping[str, Traversable]:
    folders = (folder / "published" for folder in _folders())
    files = (file for folder in folders if folder.is_dir() for file in folder.iterdir())
    return {file.name.removesuffix(_ENDING): file for file in files if file.name.endswith(_ENDING)}


def _folders() -> list[Traversable]:
    return [one for one in resources.files("qkvary.papers").iterdir() if one.is_dir()]
