"""Converts configurations to dictionaries and back, and to canonical JSON.

Stored data has its own names: ``stored`` sets the stored name of a class (its kind), and
``stored_as`` sets the stored name of a field. The names in Python can therefore change while stored
files and run keys stay the same. A field marked ``ADDED_LATER`` is written only if its value
differs from the default of the field. This default must never change.

A user's own file may define further classes. This module also imports such files, and finds the
versions of the classes. Only files that the user names are imported, and pickle is never used.
"""

import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from qkvary.arch.labels import format_label, parse_variant
from qkvary.arch.parts import check_word, field_hints
from qkvary.arch.terms import OWN
from qkvary.arch.variants import Variant
from qkvary.text.names import brief, suggest

T = TypeVar("T")
_KIND = "kind"
_NAME = "stored name"
_KINDS: dict[type[Any], str] = {}

NOT_IDENTIFYING: Mapping[str, Any] = types.MappingProxyType({"identity": False})
"""Metadata of a field that does not count for the identity of a value, such as a path."""

ADDED_LATER: Mapping[str, Any] = types.MappingProxyType({"added later": True})
"""Metadata of a field that was added to a stored class later."""


def stored_as(name: str) -> Mapping[str, Any]:
    """Return the metadata of a field that is stored as ``name`` instead of under its own name."""
    return types.MappingProxyType({_NAME: name})


def stored(kind: str) -> Callable[[type[T]], type[T]]:
    """Return a decorator that gives a dataclass its name in stored data.

    This name must never change.
    """

    def register(cls: type[T]) -> type[T]:
        for other, known in _KINDS.items():
            # A module may be imported again under another name, for example when it is run.
            if known == kind and other.__qualname__ != cls.__qualname__:
                raise ValueError(
                    f"expected a kind for {cls.__name__} that no other class has, got {kind!r}, "
                    f"the kind of {other.__name__}"
                )
        _KINDS[cls] = kind
        return cls

    return register


def stored_kind(cls: type[Any]) -> str:
    """Return the kind of a class: its name in stored data."""
    if cls not in _KINDS:
        raise ValueError(
            f'expected @stored("{cls.__name__}") above @dataclass(frozen=True, ...) of the class '
            f"{cls.__name__}, got a class without @stored"
        )
    return _KINDS[cls]


def stored_name(field: "dataclasses.Field[Any]") -> str:
    """Return a field's name in stored data."""
    return str(field.metadata.get(_NAME, field.name))


def to_dict(config: Any, *, identity: bool = False) -> Any:
    """Turn a configuration into JSON-ready data; a variant becomes its label.

    Args:
        config: A frozen dataclass, or any value that it may hold.
        identity: Whether to leave out fields that are not part of the identity.
    """
    if isinstance(config, str | int | float | None):
        return config
    if isinstance(config, Variant):
        return format_label(config)
    # In a tuple or dictionary, all fields count for the identity.
    if isinstance(config, tuple | list):
        return [to_dict(item) for item in typing.cast("tuple[Any, ...]", config)]
    if isinstance(config, dict):
        return {
            str(key): to_dict(value) for key, value in typing.cast("dict[Any, Any]", config).items()
        }
    if isinstance(config, type) or not dataclasses.is_dataclass(config):
        raise ValueError(
            "expected text, numbers, tuples and stored dataclasses in a configuration, got "
            f"{brief(config)}"
        )
    hints = field_hints(type(config))
    encoded: dict[str, Any] = {_KIND: stored_kind(type(config))}
    for field in dataclasses.fields(config):
        if identity and not field.metadata.get("identity", True):
            continue
        value, made = getattr(config, field.name), field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        if "added later" not in field.metadata or value != default:
            is_float = hints[field.name] is float
            written = float(value) if is_float else to_dict(value, identity=identity)
            encoded[stored_name(field)] = written
    return encoded


def from_dict(kind: type[T], data: Any) -> T:
    """Build a configuration of type ``kind`` from the data that ``to_dict`` returned.

    Raises:
        ValueError: for an unknown key (the message has the nearest known key), a missing key or a
            wrong type.
    """
    return typing.cast("T", _decode(kind, data, kind.__name__))


def canonical_json(config: Any, *, identity: bool = False) -> str:
    """Return ``config`` as canonical JSON: sorted keys, no spaces, integral floats as floats."""
    data = to_dict(config, identity=identity)
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _decode(hint: Any, data: Any, where: str) -> Any:
    origin = get_origin(hint)
    choices = get_args(hint) if origin in (Union, types.UnionType) else (hint,)
    if data is None and type(None) in choices:
        return None
    classes = [choice for choice in choices if dataclasses.is_dataclass(choice)]
    others = [one for one in choices if one not in classes and one is not type(None)]
    if hint is Variant:
        return parse_variant(_expect(data, str, where))
    if classes and (isinstance(data, dict) or not others):
        return _decode_dataclass(classes, data, where)
    if len(choices) > 1:
        return _decode_first(others, data, where)
    if origin is Literal:
        check_word(where, data, get_args(hint))
        return data
    if origin in (tuple, Sequence):
        item = get_args(hint)[0]
        items = typing.cast("list[Any]", _expect(data, list, where))
        return tuple(_decode(item, value, f"{where}[{index}]") for index, value in enumerate(items))
    if hint is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    return _expect(data, hint, where)


def _decode_first(choices: Sequence[Any], data: Any, where: str) -> Any:
    """Return the data as a value of the first type in ``choices`` that fits."""
    errors: list[str] = []
    for choice in choices:
        try:
            return _decode(choice, data, where)
        except ValueError as error:
            errors.append(str(error))
    raise ValueError("; ".join(errors))


def _decode_dataclass(classes: Sequence[Any], data: Any, where: str) -> Any:
    """Build an object of the kind that the data names: one of ``classes`` or a subclass.

    If the data names no kind, ``classes`` must have exactly one entry.
    """
    given = dict(typing.cast("dict[str, Any]", _expect(data, dict, where)))
    kinds = {kind: cls for cls, kind in _KINDS.items() if issubclass(cls, tuple(classes))}
    usual = _KINDS.get(classes[0]) if len(classes) == 1 else None
    kind = given.pop(_KIND, usual)
    if not isinstance(kind, str) or kind not in kinds:
        raise ValueError(f"expected {where} of kind {' or '.join(kinds)}, got {kind!r}")
    hint = kinds[kind]
    hints, known = field_hints(hint), {stored_name(f): f for f in dataclasses.fields(hint)}
    for name in given:
        if name not in known:
            raise ValueError(
                f"expected a known key in {where}, got {name!r}; {suggest(name, known)}"
            )
    fields = {
        known[name].name: _decode(hints[known[name].name], value, f"{where}.{name}")
        for name, value in given.items()
    }
    missing = [
        name
        for name, field in known.items()
        if name not in given and field.default is dataclasses.MISSING is field.default_factory
    ]
    if missing:
        raise ValueError(f"expected the keys {', '.join(missing)} in {where}")
    return hint(**fields)


def _expect(data: Any, kind: Any, where: str) -> Any:
    wrong_bool = isinstance(data, bool) and kind is not bool
    if not isinstance(data, kind) or wrong_bool:
        raise ValueError(
            f"expected {where} to be {getattr(kind, '__name__', kind)}, got {brief(data)}"
        )
    return data


# ---- classes from a user's own file


PACKAGE = __name__.partition(".")[0]
OWN_PREFIX = f"{PACKAGE}_own_"
"""Prefix of the module names of imported files."""
IMPORTED: list[Path] = []
"""The files that are being imported."""


def import_file(path: Path) -> ModuleType:
    """Import a Python file, which may register classes. Its own errors are raised unchanged."""
    name = OWN_PREFIX + path.absolute().as_posix().encode().hex()
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"expected a Python file, got {path}")
    module = importlib.util.module_from_spec(spec)
    # dataclasses look up their module by name.
    before, sys.modules[name] = sys.modules.get(name), module
    IMPORTED.append(path)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    finally:
        IMPORTED.remove(path)
    return module


def import_code(code: Iterable[str]) -> None:
    """Import modules by name, and files by path, that this process has not imported yet."""
    for one in code:
        if one.endswith(".py"):
            if OWN_PREFIX + one.encode().hex() not in sys.modules:
                import_file(Path(one))
        else:
            importlib.import_module(one)


def own_classes(network: Any, *others: object) -> tuple[type[Any], ...]:
    """Return the classes of a network, its parts and ``others`` that users' code defines."""
    names = dict.fromkeys(layer.variant.own for layer in network.layers if layer.variant.own)
    kinds = [OWN[name].made for name in names] + [type(one) for one in (network, *others)]
    return tuple(kind for kind in kinds if kind.__module__.partition(".")[0] != PACKAGE)


def code_of(classes: Iterable[type[Any]]) -> tuple[str, ...]:
    """Return the files and modules that define these classes, for an import in another process."""
    found = {file_of(kind): kind for kind in classes}
    if "__main__" in found:
        raise ValueError(
            f"expected {found['__main__'].__name__} in a file that worker processes can import, "
            "got a class defined in a notebook or session: write it into a file and import it"
        )
    return tuple(found)


def file_of(kind: type[Any]) -> str:
    """Return the file that defines a user's class, or else the name of its module.

    The file is returned if it was imported or run by its path.
    """
    name = kind.__module__
    if name.startswith(OWN_PREFIX):
        return bytes.fromhex(name.removeprefix(OWN_PREFIX)).decode()
    path = str(getattr(sys.modules.get(name), "__file__", ""))
    return str(Path(path).absolute()) if name == "__main__" and path.endswith(".py") else name


@functools.cache
def version_of(kind: type[Any]) -> str:
    """Return the version of a class: its attribute ``version``, or else the sha256 of its file."""
    stated = getattr(kind, "version", None)
    if isinstance(stated, str | int):
        return str(stated)
    try:
        path = inspect.getsourcefile(kind)
    except TypeError:
        path = None
    if path is None or not Path(path).is_file():
        raise ValueError(
            f"expected a version in the class {kind.__name__}, because its source code is not in a "
            'file, got none; set one in the class, such as version = "1", and change it whenever '
            "the results of the class change"
        )
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def not_counted(network: Any) -> tuple[str, ...]:
    """Return the parts of a network that are not included in costs, because theirs are unknown."""
    parts, kind = own_parts(layer.variant for layer in network.layers), type(network)
    is_own = kind.__module__.partition(".")[0] != PACKAGE
    return (*parts, *([f"additions of {kind.__name__} to its blocks"] * is_own))


def own_parts(variants: Iterable[Variant]) -> tuple[str, ...]:
    """Return the parts of variants that are defined in users' files, each with its meaning."""
    names = dict.fromkeys(one.own for one in variants if one.own is not None)
    return tuple(f"{name} ({OWN[name].words})" for name in names)
