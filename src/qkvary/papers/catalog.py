"""Finds the JSON files with the claims and the tables of the papers, the poster and the article."""

import difflib
import functools
import json
from collections.abc import Collection, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, TypeVar

from qkvary.text.names import listed, suggest

_ENDING = ".json"
_File = TypeVar("_File")


def document_names() -> tuple[str, ...]:
    """Return the sorted names of the documents that make claims: papers, poster and article."""
    return tuple(sorted(_claims()))


def claims_file(document: str) -> Any:
    """Return the parsed ``claims.json`` of a document."""
    return _choose(document, _claims(), "a document")


def published_names() -> tuple[str, ...]:
    """Return the names of all published tables, sorted."""
    return tuple(sorted(_published()))


def published_file(name: str) -> Any:
    """Return the contents of a published table."""
    file = _choose(name, _published(), "a published table")
    return json.loads(file.read_text("utf-8"))


def find_by_end(text: str, names: Collection[str], what: str) -> str:
    """Return the name that equals ``text``, or else the only one that ends with it."""
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
    files = (folder / f"claims{_ENDING}" for folder in _folders())
    found = [json.loads(file.read_text("utf-8")) for file in files if file.is_file()]
    return {one["document"]: one for one in found}


@functools.cache
def _published() -> Mapping[str, Traversable]:
    folders = (folder / "published" for folder in _folders())
    files = (file for folder in folders if folder.is_dir() for file in folder.iterdir())
    return {file.name.removesuffix(_ENDING): file for file in files if file.name.endswith(_ENDING)}


def _folders() -> list[Traversable]:
    return [one for one in resources.files("qkvary.papers").iterdir() if one.is_dir()]
