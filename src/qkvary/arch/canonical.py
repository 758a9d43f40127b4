"""Configurations as plain data: a dictionary and back, one canonical JSON, one fingerprint.

Stored data has its own names: ``stored`` sets the name of a class (its kind), ``stored_as`` that of
a field, so that Python's names can change while stored files and run keys stay the same. A field
that is ``ADDED_LATER`` is written only if it differs from its default, which must never change.

Classes may come from a user's own file: this module also imports them and finds their version.
Nothing is loaded by pickle: only files that the user names are imported.
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
from qkvary.text.names import suggest

T = TypeVar("T")
_KIND = "kind"
_NAME = "stored name"
_KINDS: dict[type[Any], str] = {}

NOT_IDENTIFYING: Mapping[str, Any] = types.MappingProxyType({"identity": False})
"""Metadata of a field that is not part of a value's identity, such as a path: values that differ
only in this field have the same fingerprint."""

ADDED_LATER: Mapping[str, Any] = types.MappingProxyType({"added later": True})
"""Metadata of a field that was added to a stored class after the first files and keys were
written."""


def stored_as(name: str) -> Mapping[str, Any]:
    """Return the metadata of a field that is stored as ``name`` instead of under its own name."""
    return types.MappingProxyType({_NAME: name})


def stored(kind: str) -> Callable[[type[T]], type[T]]:
    """Return a decorator that sets a dataclass's name in stored data, which must never change."""

    def register(cls: type[T]) -> type[T]:
        for other, known in _KINDS.items():
            # A module may be imported again under another name, for example when it is run.
            if known == kind and other.__qualname__ != cls.__qualname__:
                raise ValueError(
                    f"expected a separate kind for {cls.__name__}, got {kind!r}, the kind of "
                    f"{other.__name__}"
                )
        _KINDS[cls] = kind
        return cls

    return register


def stored_kind(cls: type[Any]) -> str:
    """Return the kind of a class: its name in stored data."""
    if cls not in _KINDS:
        raise TypeError(f"expected a class with a stored kind, got {cls.__name__}")
    return _KINDS[cls]


def stored_name(field: "dataclasses.Field[Any]") -> str:
    """Return a field's name in stored data."""
    return str(field.metadata.get(_NAME, field.name))


def always_written(field: "dataclasses.Field[Any]") -> bool:
    """Return whether a field is written even if it has its default."""
    return "added later" not in field.metadata


def to_dict(config: Any) -> Any:
    """Turn a configuration into JSON-ready data; a variant becomes its label.

    Args:
        config: A frozen dataclass, or any value that it may hold.
    """
    return _encode(config, is_identity=False)


def _encode(config: Any, *, is_identity: bool) -> Any:
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
        return config
    hints = field_hints(type(config))
    encoded: dict[str, Any] = {_KIND: stored_kind(type(config))}
    for field in dataclasses.fields(config):
        if is_identity and not field.metadata.get("identity", True):
            continue
        value, made = getattr(config, field.name), field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        if always_written(field) or value != default:
            is_float = hints[field.name] is float
            written = float(value) if is_float else _encode(value, is_identity=is_identity)
            encoded[stored_name(field)] = written
    return encoded


def from_dict(kind: type[T], data: Any) -> T:
    """Build a configuration of type ``kind`` from the data that ``to_dict`` returned.

    Raises:
        ValueError: for an unknown key (with the nearest known one), a missing key or a wrong type.
    """
    return typing.cast("T", _decode(kind, data, kind.__name__))


def canonical_json(config: Any) -> str:
    """Return the canonical JSON text: sorted keys, no spaces, integral floats as floats."""
    return _dump(to_dict(config))


def identity_dict(config: Any) -> Any:
    """Return the result of ``to_dict`` without fields that are not part of the identity."""
    return _encode(config, is_identity=True)


def identity_json(config: Any) -> str:
    """Return the canonical JSON of ``identity_dict``."""
    return _dump(_encode(config, is_identity=True))


def fingerprint(config: Any) -> str:
    """Return the sha256 of the canonical JSON, as 64 hexadecimal digits."""
    return hashlib.sha256(canonical_json(config).encode()).hexdigest()


def _dump(data: Any) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _decode(hint: Any, data: Any, where: str) -> Any:
    if hint is Variant:
        return parse_variant(_expect(data, str, where))
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(_concrete(hint, data, where), data, where)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(hint), data, where)
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


def _concrete(hint: Any, data: Any, where: str) -> type[Any]:
    """Return the class to build.

    It is the subclass of ``hint`` whose kind is named in the data, or ``hint`` itself if the data
    names no kind.
    """
    kinds = {kind: cls for cls, kind in _KINDS.items() if issubclass(cls, hint)}
    kind = _expect(data, dict, where).get(_KIND)
    if kind not in kinds and hint in _KINDS:
        return hint
    if kind not in kinds:
        raise ValueError(f"expected {where} to be one of {', '.join(kinds)}, got {kind!r}")
    return kinds[kind]


def _decode_dataclass(hint: type[Any], data: Any, where: str) -> Any:
    given = dict(typing.cast("dict[str, Any]", _expect(data, dict, where)))
    expected = stored_kind(hint)
    kind = given.pop(_KIND, expected)
    if kind != expected:
        raise ValueError(f"expected {where} of kind {expected}, got {kind!r}")
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


def _decode_union(choices: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in choices:
        return None
    if isinstance(data, dict):
        kind = typing.cast("dict[str, Any]", data).get(_KIND)
        named = [choice for choice in choices if kind is not None and _KINDS.get(choice) == kind]
        classes = [choice for choice in choices if dataclasses.is_dataclass(choice)]
        if named or len(classes) == 1:
            return _decode((named or classes)[0], data, where)
        names = ", ".join(str(getattr(choice, "__name__", choice)) for choice in choices)
        raise ValueError(f"expected {where} to be one of {names}, got {kind!r}")
    errors: list[str] = []
    for choice in choices:
        if choice is not type(None) and not dataclasses.is_dataclass(choice):
            try:
                return _decode(choice, data, where)
            except ValueError as error:
                errors.append(str(error))
    raise ValueError("; ".join(errors) or f"expected another value for {where}, got {data!r}")


def _expect(data: Any, kind: Any, where: str) -> Any:
    wrong_bool = isinstance(data, bool) and kind is not bool
    if not isinstance(data, kind) or wrong_bool:
        raise ValueError(f"expected {where} to be {getattr(kind, '__name__', kind)}, got {data!r}")
    return data


# ---- classes from a user's own file


PACKAGE = __name__.partition(".")[0]
OWN_PREFIX = f"{PACKAGE}_own_"
"""Prefix of the module names of imported files."""


def import_file(path: Path) -> ModuleType:
    """Import a Python file, which may register classes; an error in it is raised unchanged."""
    name = OWN_PREFIX + path.absolute().as_posix().encode().hex()
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"expected a Python file, got {path}")
    module = importlib.util.module_from_spec(spec)
    # dataclasses look up their module by name.
    before, sys.modules[name] = sys.modules.get(name), module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
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
    """Return the classes from outside this package that a network or other values contain."""
    names = dict.fromkeys(layer.variant.own for layer in network.layers if layer.variant.own)
    kinds = [OWN[name].made for name in names] + [type(one) for one in (network, *others)]
    return tuple(kind for kind in kinds if kind.__module__.partition(".")[0] != PACKAGE)


def code_of(classes: Iterable[type[Any]]) -> tuple[str, ...]:
    """Return the files and modules that another process must import to know these classes."""
    found = dict[str, None]()
    for kind in classes:
        name = kind.__module__
        is_file = name.startswith(OWN_PREFIX)
        found[bytes.fromhex(name.removeprefix(OWN_PREFIX)).decode() if is_file else name] = None
    return tuple(found)


@functools.cache
def version_of(kind: type[Any]) -> str:
    """Return the version of a class: the ``version`` that it states, or the sha256 of its file."""
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
    """Return the parts of a network that are not counted because their cost is unknown."""
    parts, kind = own_parts(layer.variant for layer in network.layers), type(network)
    is_own = kind.__module__.partition(".")[0] != PACKAGE
    return (*parts, *([f"what {kind.__name__} adds to its blocks"] * is_own))


def own_parts(variants: Iterable[Variant]) -> tuple[str, ...]:
    """Return the parts from users' files that the variants contain, each with its meaning."""
    names = dict.fromkeys(one.own for one in variants if one.own is not None)
    return tuple(f"{name} ({OWN[name].words})" for name in names)
