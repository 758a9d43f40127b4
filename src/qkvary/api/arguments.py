"""Reads the arguments of verbs by their annotations: accepts what is clear and refuses the rest.

A caller in Python can pass anything. Arguments annotated with a class, such as a model or a study,
and numbers that may be text (32k, 10%) are not checked here: other functions read them.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, cast, get_args, get_origin

from qkvary.storage.errors import UsageError
from qkvary.storage.untrusted_files import read_path
from qkvary.text.names import near_names

P = ParamSpec("P")
R = TypeVar("R")
_NAMES: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    Path: "a path",
    NoneType: "None",
}


def reads_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function read its arguments by their annotations."""
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: P.args, **given: P.kwargs) -> R:
        read, named = read_arguments(parameters, args, given)
        return cast("Any", function)(*read, **named)

    return call


def read_arguments(
    parameters: Mapping[str, inspect.Parameter], args: Sequence[Any], given: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and keyword arguments of a call, each converted to its annotation."""
    places = [one for one in parameters.values() if one.kind is not one.KEYWORD_ONLY]
    if places and places[-1].kind is inspect.Parameter.VAR_POSITIONAL:
        places += places[-1:] * len(args)
    read = [
        read_argument(one.name, value, one.annotation)
        for one, value in zip(places, args, strict=False)
    ]
    named = {
        name: read_argument(name, value, parameters[name].annotation)
        if name in parameters
        else value
        for name, value in given.items()
    }
    # Surplus arguments are refused by the call.
    return [*read, *args[len(read) :]], named


def read_argument(name: str, given: object, kind: Any) -> Any:
    """Return an argument, converted to its annotation.

    NumPy and PyTorch numbers become Python numbers. A path becomes a string if only strings are
    accepted, and a string becomes a tuple of one string if only sequences are accepted.
    """
    value, kinds = _plain(given), _split(kind)
    is_number_or_text = str in kinds and (int in kinds or float in kinds)
    if not all(map(_is_known, kinds)) or (is_number_or_text and value is not None):
        return value
    for one in kinds:
        for fitting in _fit(value, one):
            return fitting
    expected = " or ".join(_describe(one) for one in kinds if one is not NoneType)
    choices = [choice for one in kinds if get_origin(one) is Literal for choice in get_args(one)]
    near = near_names(value, choices) if isinstance(value, str) else ()
    hint = f"; did you mean {near[0]}?" if near else ""
    found = " ".join(repr(value).split())[:60]
    raise UsageError(f"{name}: expected {expected}, got {found}{hint}")


def _plain(given: Any) -> Any:
    """Return a NumPy or PyTorch scalar as a Python number or bool, and other values unchanged."""
    if getattr(given, "ndim", None) == 0 and hasattr(given, "item"):
        return given.item()
    return given


def _split(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union annotation, or the annotation itself, in a tuple."""
    if get_origin(kind) is Annotated:
        return _split(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return tuple(one for part in get_args(kind) for one in _split(part))
    return (kind,)


def _is_known(kind: Any) -> bool:
    if get_origin(kind) in (tuple, Sequence):
        return all(map(_is_known, _split(get_args(kind)[0])))
    return get_origin(kind) in (Literal, Mapping) or kind in _NAMES


def _fit(given: object, kind: Any) -> tuple[Any, ...]:
    """Return a tuple with the value, converted to the kind; an empty tuple if it does not fit."""
    if get_origin(kind) is Literal:
        return (given,) if given in get_args(kind) else ()
    if get_origin(kind) is Mapping:
        return (given,) if isinstance(given, Mapping) else ()
    if get_origin(kind) in (tuple, Sequence):
        if not isinstance(given, Iterable) or isinstance(given, bytes | Mapping):
            return ()
        several = [given] if isinstance(given, str) else [*cast("Iterable[object]", given)]
        items = [_fit_any(_plain(one), get_args(kind)[0]) for one in several]
        return (tuple(found[0] for found in items),) if all(items) else ()
    if kind in (str, Path) and isinstance(given, str | os.PathLike):
        path = os.fspath(cast("str | os.PathLike[str]", given))
        return (read_path(path) if kind is Path else path,)
    accepted = (int, float) if kind is float else (kind,)
    return (given,) if type(given) in accepted else ()


def _fit_any(given: object, kind: Any) -> tuple[Any, ...]:
    return tuple(found for one in _split(kind) for found in _fit(given, one))[:1]


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) in (tuple, Sequence):
        return f"a list, each {' or '.join(map(_describe, _split(get_args(kind)[0])))}"
    return "a mapping" if get_origin(kind) is Mapping else _NAMES[kind]
