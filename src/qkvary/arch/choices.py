"""Fields that hold one of a few words: their annotations, and one check for all of them."""

import dataclasses
import difflib
import functools
from typing import Any, Literal, get_args, get_origin, get_type_hints


@functools.cache
def field_hints(kind: type[Any]) -> dict[str, Any]:
    """Return the resolved annotations of a dataclass, by field."""
    return get_type_hints(kind)


def check_choices(config: Any) -> None:
    """Refuse a word that a ``Literal`` field of a dataclass does not list.

    Args:
        config: A dataclass instance.

    Raises:
        ValueError: with the choices, and the nearest one where there is one.
    """
    hints = field_hints(type(config))
    for field in dataclasses.fields(config):
        if get_origin(hints[field.name]) is not Literal:
            continue
        choices, value = get_args(hints[field.name]), getattr(config, field.name)
        if value not in choices:
            near = difflib.get_close_matches(str(value), choices, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            listed = ", ".join(map(str, choices))
            raise ValueError(f"expected {field.name} out of {listed}, got {value!r}{hint}")
