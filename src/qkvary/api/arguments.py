"""Makes a function a verb: checks and converts its arguments by their annotations.

An argument of the annotated type is accepted. A value that can clearly be converted to that type is
accepted too: a NumPy number, a string instead of a path, or one string where several are expected.
``Reads`` in an annotation names a function that converts the given value, such as "32k".
``cyclopts.Parameter`` in an annotation is only for the command line: it defines another spelling,
or shell completion. An argument whose annotation names any other class, such as a network or a
study, is passed unchanged.
"""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from cyclopts import Parameter

from qkvary.storage.errors import QkvaryError, UsageError
from qkvary.storage.untrusted_files import read_path
from qkvary.text.names import near_names
from qkvary.text.numbers import Reads

T = TypeVar("T")
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
_NAMES: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    Path: "a path",
    NoneType: "None",
}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def options(group: type[T]) -> type[T]:
    """Make a class a dataclass of options; the docstring under each field is the option's help."""
    return dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(group)


class Verb(Protocol[P, R_co]):
    """A function whose arguments are converted by their annotations."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> R_co: ...


def verb(function: Callable[P, R_co]) -> Verb[P, R_co]:
    """Make a function convert its arguments and accept the fields of its options as keywords.

    Arguments are converted by their annotations. ``plan(model, gpu="t4")`` means ``plan(model,
    hardware=Hardware(gpu="t4"))``. The spellings of the command line are accepted as keywords too
    (``variant`` for ``variants``). The signature of the returned function lists the fields of the
    option groups, for ``help`` and for the command line.
    """
    own = inspect.signature(function)
    groups = option_groups(function)
    owners = {one.name: name for name, group in groups.items() for one in dataclasses.fields(group)}

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        for name in spellings.keys() & given.keys():
            if spellings[name] in given:
                raise TypeError(
                    f"got {name} and {spellings[name]}, which are two spellings of one parameter"
                )
            given[spellings[name]] = given.pop(name)
        for name in groups.keys() & given.keys():
            given = _fields_of(given.pop(name), name, type(groups[name])) | given
        read, given = _read_arguments(shown, args, given)
        # In Python, a positional parameter may also be given by its name.
        for name in positional[len(read) :]:
            if name not in given:
                break
            read.append(given.pop(name))
        changed: dict[str, dict[str, Any]] = {}
        for name in owners.keys() & given.keys():
            changed.setdefault(owners[name], {})[name] = given.pop(name)
        for name, values in changed.items():
            given[name] = dataclasses.replace(groups[name], **values)
        return cast("Any", function)(*read, **given)

    parameters: list[inspect.Parameter] = []
    for name, parameter in own.parameters.items():
        if name not in groups:
            parameters.append(parameter)
            continue
        kinds = get_type_hints(type(groups[name]), include_extras=True)
        parameters += [
            inspect.Parameter(
                one.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=getattr(groups[name], one.name),
                annotation=kinds[one.name],
            )
            for one in dataclasses.fields(groups[name])
        ]
    spellings = {
        spelling.removeprefix("--"): one.name
        for one in parameters
        for mark in unwrap(one.annotation)[1]
        for spelling in mark.name or ()
        if spelling[2:] not in {*own.parameters, *owners}
    }
    shown = {one.name: one for one in parameters}
    positional = [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY]
    made = cast("Any", call)
    made.__signature__ = own.replace(parameters=parameters)
    return made


def _fields_of(given: object, name: str, kind: type) -> dict[str, Any]:
    """Return the fields of a group of options, by name."""
    if not isinstance(given, kind):
        raise UsageError(f"{name}: expected a value of {kind.__name__}, got {given!r}"[:200])
    return {one.name: getattr(given, one.name) for one in dataclasses.fields(cast("Any", kind))}


def option_groups(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the default of each parameter that is a group of options, by parameter name."""
    parameters = inspect.signature(inspect.unwrap(function)).parameters
    return {
        name: parameter.default
        for name, parameter in parameters.items()
        if dataclasses.is_dataclass(parameter.default)
    }


def _read_arguments(
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
    value, (kinds, _) = _plain(given), unwrap(kind)
    if not all(map(_is_known, kinds)) or (value is None and NoneType in kinds):
        return value
    for one in kinds:
        if isinstance(one, Reads):
            try:
                return one.read(value, name)
            except QkvaryError:
                raise
            except ValueError as error:
                raise UsageError(str(error)) from None
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


def unwrap(kind: Any) -> tuple[list[Any], list[Parameter]]:
    """Split an annotation into its types or ``Reads``, and its ``cyclopts.Parameter`` values."""
    if get_origin(kind) is Annotated:
        inside, *marks = get_args(kind)
        types, more = unwrap(inside)
        readers = [one for one in marks if isinstance(one, Reads)]
        return readers or types, [*more, *(one for one in marks if isinstance(one, Parameter))]
    if get_origin(kind) not in (Union, UnionType):
        return [kind], []
    found = [unwrap(one) for one in get_args(kind)]
    return [one for some, _ in found for one in some], [one for _, some in found for one in some]


def _is_known(kind: Any) -> bool:
    if get_origin(kind) in (tuple, Sequence):
        return all(map(_is_known, unwrap(get_args(kind)[0])[0]))
    return get_origin(kind) in (Literal, Mapping) or kind in _NAMES or isinstance(kind, Reads)


def _fit(given: object, kind: Any) -> tuple[Any, ...]:
    """Return the value, converted to a type, in a tuple; an empty tuple if it does not fit."""
    if get_origin(kind) is Literal:
        return (given,) if given in get_args(kind) else ()
    if get_origin(kind) is Mapping:
        return (given,) if isinstance(given, Mapping) else ()
    if get_origin(kind) in (tuple, Sequence):
        several = [given] if isinstance(given, str | os.PathLike) else given
        if not isinstance(several, Iterable) or isinstance(given, bytes | Mapping):
            return ()
        items = [_fit_any(_plain(one), get_args(kind)[0]) for one in several]
        return (tuple(found[0] for found in items),) if all(items) else ()
    if kind in (str, Path) and isinstance(given, str | os.PathLike):
        path = os.fspath(cast("str | os.PathLike[str]", given))
        return (read_path(path) if kind is Path else path,)
    accepted = (int, float) if kind is float else (kind,)
    return (given,) if type(given) in accepted else ()


def _fit_any(given: object, kind: Any) -> tuple[Any, ...]:
    return tuple(found for one in unwrap(kind)[0] for found in _fit(given, one))[:1]


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) in (tuple, Sequence):
        return f"one or several, each {' or '.join(map(_describe, unwrap(get_args(kind)[0])[0]))}"
    return "a mapping" if get_origin(kind) is Mapping else _NAMES[kind]
