"""The parts of configurations: checked fields, and the matrices, tables and norms of a model."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from qkvary.text.names import brief, listed, near_names

T = TypeVar("T")

LARGEST_SIZE = 2**40
"""Maximum of every size; a larger number in a configuration is refused as a mistake."""
_EXPECTED: dict[object, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    int | None: ((int, type(None)), "a whole number or None"),
    float: ((int, float), "a number"),
    float | None: ((int, float, type(None)), "a number or None"),
    bool: ((bool,), "True or False"),
}


def check_sizes(owner: object, *names: str) -> None:
    """Refuse fields that are not positive numbers of a plausible magnitude; ``None`` is allowed."""
    for name in names:
        size: int | None = getattr(owner, name)
        if size is not None and not 1 <= size <= LARGEST_SIZE:
            kind = type(owner).__name__
            raise ValueError(f"expected {name} of {kind} in 1 ... 2^40, got {size}")


def check_rates(owner: object, *names: str) -> None:
    """Refuse dropout rates outside [0, 1); ``None`` is allowed."""
    for name in names:
        rate: float | None = getattr(owner, name)
        if rate is not None and not 0 <= rate < 1:
            raise ValueError(f"expected {name} in [0, 1), got {rate}")


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix that every token passes through."""

    inputs: int
    outputs: int
    bias: bool = False
    groups: int = 1
    """Number of diagonal blocks; 1 for a full matrix."""
    tied: bool = False
    """Whether the matrix reuses the weights of a ``Table``. If so, the table counts them."""
    is_pooled: bool = False
    """Whether only one vector per sequence passes through the matrix, as in a classifier's head."""
    skipped_tokens: int = 0
    """Number of tokens of a sequence that do not pass through the matrix."""

    def __post_init__(self) -> None:
        check_sizes(self, "inputs", "outputs", "groups")

    @property
    def weights(self) -> int:
        """Number of entries of the matrix, and also of its multiply-accumulates per token."""
        return self.inputs * self.outputs // self.groups

    @property
    def biases(self) -> int:
        """Number of entries of the bias."""
        return self.outputs if self.bias else 0


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that are looked up and not multiplied: an embedding, or learned positions."""

    rows: int
    """Number of entries to look up."""
    width: int
    bias: bool = False

    def __post_init__(self) -> None:
        check_sizes(self, "rows", "width")

    @property
    def weights(self) -> int:
        """Number of entries of the table."""
        return self.rows * self.width

    @property
    def biases(self) -> int:
        """Number of entries of the bias."""
        return self.width if self.bias else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm(Table):
    """A normalisation: one learned gain per channel and, as in LayerNorm, optionally a bias."""

    rows: int = 1


@functools.cache
def field_hints(kind: type[Any]) -> dict[str, Any]:
    """Return the resolved annotation of each field of a dataclass."""
    return get_type_hints(kind)


def check_choices(config: Any) -> None:
    """Refuse values of the wrong type, and values that a field's ``Literal`` does not list."""
    numbers, words = _checked_fields(type(config))
    for name, (kinds, expected) in numbers.items():
        value = getattr(config, name)
        if not isinstance(value, kinds) or (type(value) is bool and bool not in kinds):
            raise ValueError(f"expected {expected} for {name}, got {value!r}")
    for name, choices in words.items():
        check_word(name, getattr(config, name), choices)


@functools.cache
def _checked_fields(
    kind: type[Any],
) -> tuple[dict[str, tuple[tuple[type, ...], str]], dict[str, tuple[Any, ...]]]:
    """Return the types of numeric fields and flags, and the choices of ``Literal`` fields."""
    hints = {field.name: field_hints(kind)[field.name] for field in dataclasses.fields(kind)}
    numbers = {name: _EXPECTED[hint] for name, hint in hints.items() if hint in _EXPECTED}
    words = {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}
    return numbers, words


def check_word(name: str, value: object, choices: Sequence[Any]) -> None:
    """Refuse a word that is not one of the choices of ``name``, and suggest the nearest."""
    if value not in choices:
        near = near_names(str(value), map(str, choices))
        hint = f"; did you mean {near[0]}?" if near else ""
        listed = ", ".join(map(str, choices))
        raise ValueError(f"expected {name} to be one of {listed}, got {value!r}{hint}")


def returned(owner: object, member: str, value: T, kind: type[Any] | tuple[type[Any], ...]) -> T:
    """Return ``value``, the result of a member of a user's class, if its type is ``kind``.

    Raises:
        ValueError: if ``value`` is of another type.
    """
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        expected = listed([one.__name__ for one in kinds], "or")
        name = owner.__name__ if isinstance(owner, type) else type(owner).__name__
        # All bad input is a ValueError.
        raise ValueError(  # noqa: TRY004
            f"expected {expected} from {name}.{member}, got {brief(value)}"
        )
    return value


def given_sizes(
    config: object,
    sizes: Mapping[str, object],
    *,
    kind: type[Any],
    required: Sequence[str],
) -> dict[str, Any]:
    """Return the sizes that a caller gave instead of a configuration of type ``kind``.

    In ``sizes``, ``None`` means not given. Without a ``config``, all ``required`` must be given.
    """
    if config is not None and not isinstance(config, kind):
        raise ValueError(
            f"expected {kind.__name__} or the keywords {', '.join(required)}, got {brief(config)}"
        )
    given = {name: value for name, value in sizes.items() if value is not None}
    if config is not None:
        if given:
            raise ValueError(f"expected a configuration or sizes, got both: {', '.join(given)}")
        return given
    missing = [name for name in required if name not in given]
    if missing:
        raise ValueError(f"expected {', '.join(required)}, got no {', '.join(missing)}")
    return given
