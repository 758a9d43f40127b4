"""Defines ``verb``: a decorator that checks and converts arguments by their annotations.

An argument of the annotated type is accepted. A value that can clearly be converted to that type is
accepted too: a NumPy number, a string instead of a path, or one string where several are expected.
``Reads`` in an annotation names a function that converts the given value, such as "32k".
``cyclopts.Parameter`` in an annotation defines another spelling. An argument whose annotation names
a class in quotes, such as a network or a study, is passed unchanged.
"""

import functools
import inspect
import os
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from cyclopts import Parameter
from docstring_parser import parse_from_object

from qkvary.storage.errors import QkvaryError, UsageError
from qkvary.storage.untrusted_files import read_path
from qkvary.text.names import near_names
from qkvary.text.numbers import Reads

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


class Verb(Protocol[P, R_co]):
    """A function whose arguments are converted by their annotations."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, *args: Any, **kwargs: Any) -> R_co: ...


def verb(function: Callable[P, R_co]) -> Verb[P, R_co]:
    """Make a function convert its arguments and accept the fields of its options as keywords.

    Arguments are converted by their annotations. A parameter whose default is a dataclass is a
    group of options: ``plan(model, gpu="t4")`` means ``plan(model, hardware=Hardware(gpu="t4"))``.
    The spellings of the command line are accepted as keywords too (``variant`` for ``variants``).
    The signature of the returned function lists the fields of the groups; ``**more`` in it stands
    for the groups themselves and for the other spellings.
    """
    own, groups = inspect.signature(function), option_groups(function)
    parameters = list_parameters(function)
    listed = inspect.Signature([*parameters.values()])
    spellings = {
        spelling.removeprefix("--"): one.name
        for one in parameters.values()
        for mark in unwrap(one.annotation)[1]
        for spelling in mark.name or ()
        if spelling[2:] not in {*own.parameters, *parameters}
    }

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        for spelling in spellings.keys() & given.keys():
            if (name := spellings[spelling]) in given:
                raise TypeError(
                    f"got {spelling} and {name}, which are two spellings of one parameter"
                )
            given[name] = given.pop(spelling)
        for name in groups.keys() & given.keys():
            group = read_argument(name, given.pop(name), type(groups[name]))
            given = {one.name: getattr(group, one.name) for one in fields(group)} | given
        values = listed.bind(*args, **given).arguments
        for name, value in values.items():
            one = parameters[name]
            if one.kind is one.VAR_POSITIONAL:
                values[name] = tuple(read_argument(name, it, one.annotation) for it in value)
            else:
                values[name] = read_argument(name, value, one.annotation)
        for name, group in groups.items():
            given = {one.name: values.pop(one.name) for one in fields(group) if one.name in values}
            values[name] = replace(group, **given) if given else group
        bound = inspect.BoundArguments(own, cast("Any", values))
        return cast("Any", function)(*bound.args, **bound.kwargs)

    shown = [
        one.replace(annotation=_resolve(one.annotation, function)) for one in parameters.values()
    ]
    made = cast("Any", call)
    made.__annotations__ = {one.name: one.annotation for one in shown}
    made.__annotations__["return"] = _resolve(own.return_annotation, function)
    if groups or spellings:
        shown.append(inspect.Parameter("more", inspect.Parameter.VAR_KEYWORD, annotation=Any))
    made.__signature__ = own.replace(parameters=shown)
    made.__doc__ = _document(function, parameters.keys() - own.parameters.keys())
    return made


def option_groups(function: Callable[..., Any]) -> dict[str, Any]:
    """Map the name of each parameter that is a group of options to the group's defaults."""
    parameters = inspect.signature(inspect.unwrap(function)).parameters
    return {name: one.default for name, one in parameters.items() if is_dataclass(one.default)}


def list_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a verb by name. Each group of options is replaced by its fields."""
    groups, found = option_groups(function), dict[str, inspect.Parameter]()
    for name, parameter in inspect.signature(inspect.unwrap(function)).parameters.items():
        if name not in groups:
            several = {name: parameter}
        else:
            group, kinds = groups[name], get_type_hints(type(groups[name]), include_extras=True)
            several = {
                one.name: inspect.Parameter(
                    one.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=getattr(group, one.name),
                    annotation=kinds[one.name],
                )
                for one in fields(group)
            }
        if twice := found.keys() & several.keys():
            raise TypeError(f"expected each option once, got two of {', '.join(sorted(twice))}")
        found |= several
    return found


def _resolve(kind: Any, function: Any) -> Any:
    """Evaluate an annotation and strip the metadata of ``Annotated``.

    Return ``Any`` if the annotation names a class that is not imported.
    """
    holder = SimpleNamespace(__annotations__={"kind": kind})
    try:
        return get_type_hints(holder, function.__globals__)["kind"]
    except NameError:
        return Any


def read_help(function: Callable[..., Any]) -> dict[str, str]:
    """Return the help of each parameter, from the docstrings of the function and of its groups."""
    kinds = map(type, option_groups(function).values())
    sources = [cls for kind in kinds for cls in reversed(kind.__mro__) if cls is not object]
    found = [parse_from_object(cast("Any", one)) for one in (inspect.unwrap(function), *sources)]
    texts = {one.arg_name: one.description or "" for part in found for one in part.params}
    return {name: " ".join(text.replace("``", "").split()) for name, text in texts.items()}


def _document(function: Callable[..., Any], added: Iterable[str]) -> str:
    """Return the docstring of a function, followed by the help of its grouped options."""
    lines = [inspect.getdoc(function) or ""]
    if added := set(added):
        lines += ["", "Options:"]
        lines += [
            textwrap.fill(f"{name}: {text}", 100, initial_indent=" " * 4, subsequent_indent=" " * 8)
            for name, text in read_help(function).items()
            if name in added
        ]
    return "\n".join(lines)


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
    items = [get_args(one)[0] for one in kinds if get_origin(one) in (tuple, Sequence)]
    expected = " or ".join(_describe(one) for one in kinds if one not in (NoneType, *items))
    choices = [choice for one in kinds if get_origin(one) is Literal for choice in get_args(one)]
    near = near_names(value, choices) if isinstance(value, str) else ()
    hint = f"; did you mean {near[0]}?" if near else ""
    found = " ".join(repr(value).split())[:60]
    raise UsageError(f"{name}: expected {expected}, got {found}{hint}")


def _plain(given: Any) -> Any:
    """Return a NumPy or PyTorch scalar as a Python number, and a torch.device or dtype as text."""
    if getattr(given, "ndim", None) == 0 and hasattr(given, "item"):
        return given.item()
    if type(given).__module__ == "torch" and type(given).__name__ in ("device", "dtype"):
        return str(given).removeprefix("torch.")
    return given


def unwrap(kind: Any) -> tuple[list[Any], list[Parameter]]:
    """Return the types (or ``Reads``) of an annotation, and its ``cyclopts.Parameter`` values."""
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
    return get_origin(kind) in (Literal, Mapping) or isinstance(kind, type | Reads)


def _fit(given: object, kind: Any) -> tuple[Any, ...]:
    """Return a tuple that contains the converted value, or an empty tuple if it does not fit."""
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
    if kind not in _NAMES:
        return (given,) if isinstance(given, kind) else ()
    accepted = (int, float) if kind is float else (kind,)
    return (given,) if type(given) in accepted else ()


def _fit_any(given: object, kind: Any) -> tuple[Any, ...]:
    return tuple(found for one in unwrap(kind)[0] for found in _fit(given, one))[:1]


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) in (tuple, Sequence):
        return f"one or several, each {' or '.join(map(_describe, unwrap(get_args(kind)[0])[0]))}"
    if get_origin(kind) is Mapping:
        return "a mapping"
    return _NAMES.get(kind) or f"a value of {kind.__name__}"
