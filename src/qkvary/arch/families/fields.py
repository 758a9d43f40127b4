"""The fields of a configuration file, read and checked one by one.

A configuration is untrusted input: every value may be missing, of a wrong type, or absurd.
"""

import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from qkvary.arch.labels import MOST_LAYERS
from qkvary.arch.models import Model
from qkvary.arch.parts import LARGEST_SIZE

# Values may be long and deep, but messages must stay short.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 40
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 3
_SHORT.maxlevel = 2


class Fields:
    """The content of one configuration; ``family`` names the model family in error messages.

    Each method takes the current name of one field, then its other names, and reads the first
    name that is present. A null counts as absent, and an absent field has its default. A missing
    or invalid value raises ``ValueError``.
    """

    def __init__(self, content: Mapping[str, object], family: str) -> None:
        self.content = content
        self.family = family

    def has(self, *names: str) -> bool:
        """Return whether the field is present and not null under one of its names."""
        return self._find(names) is not None

    def replace(self, **changes: object) -> "Fields":
        """Return the configuration with other values in some fields."""
        return Fields({**self.content, **changes}, self.family)

    def size(self, *names: str, default: int | None = None) -> int:
        """Return a positive whole number. Without a default, the field is required."""
        found = self.optional_size(*names)
        if found is None and default is None:
            raise self.missing(names)
        return found or default or 1

    def optional_size(self, *names: str) -> int | None:
        """Return a positive whole number, or ``None`` if the field is absent."""
        return self._whole(names, least=1)

    def count(self, *names: str, default: int = 0) -> int:
        """Return a whole number of at least 0, or ``default`` if the field is absent."""
        found = self._whole(names, least=0)
        return default if found is None else found

    def layers(self, *names: str) -> int:
        """Return the number of layers, which is required and must be plausible."""
        found = self.size(*names)
        if found > MOST_LAYERS:
            raise self._wrong(names, f"at most {MOST_LAYERS:,} layers", found)
        return found

    def flag(self, *names: str, default: bool) -> bool:
        """Return a true or false value; any other value is refused."""
        value = self._find(names)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(names, "true or false", value)
        return default if value is None else value

    def number(self, *names: str, default: float | None = None) -> float:
        """Return a finite number. Without a default, the field is required."""
        value = self._find(names)
        value = default if value is None else value
        if value is None:
            raise self.missing(names)
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            raise self._wrong(names, "a number", value)
        return float(value)

    def text(self, *names: str, default: str) -> str:
        """Return a string, or ``default`` if the field is absent."""
        value = self._find(names)
        if value is not None and not isinstance(value, str):
            raise self._wrong(names, "a text", value)
        return default if value is None else value

    def items(self, *names: str) -> tuple[object, ...] | None:
        """Return the items of a list, or ``None`` if the field is absent."""
        value = self._find(names)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self._wrong(names, "a list", value)
        found = tuple(cast("Sequence[object]", value))
        if len(found) > MOST_LAYERS:
            raise self._wrong(names, f"at most {MOST_LAYERS:,} entries", f"{len(found):,} entries")
        return found

    def words(self, *names: str, choices: Sequence[str], length: int) -> tuple[str, ...] | None:
        """Return a list of ``length`` words from ``choices``, ``None`` if the field is absent."""
        found = self.items(*names)
        if found is None:
            return None
        for item in found:
            if item not in choices:
                raise self._wrong(names, f"words from {', '.join(choices)}", item)
        if len(found) != length:
            raise self._wrong(names, f"{length} entries", f"{len(found)} entries")
        return tuple(str(item) for item in found)

    def numbers(self, *names: str) -> frozenset[int] | None:
        """Return the set of layer numbers in a list, or ``None`` if the field is absent."""
        items = self.items(*names)
        if items is None:
            return None
        found = frozenset(one for one in items if isinstance(one, int))
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in items):
            raise self.refuse(names[0], "a list of layer numbers")
        return found

    def section(self, name: str) -> "Fields | None":
        """Return a nested configuration, or ``None`` if the field is absent."""
        value = self.content.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.refuse(name, "a nested configuration")
        return Fields(cast("Mapping[str, object]", value), self.family)

    def nested(self, name: str) -> "Fields":
        """Return a nested configuration, empty if the field is absent."""
        return self.section(name) or Fields({}, self.family)

    def allow(self, supported: Mapping[str, tuple[object, ...]]) -> None:
        """Refuse fields whose values are not in ``supported``; a null is always allowed."""
        for name, values in supported.items():
            if self.has(name) and self.content[name] not in values:
                raise self.refuse(name, " or ".join(str(one).lower() for one in values) or "null")

    def refuse(self, name: str, expected: str) -> ValueError:
        """Return the error for a field whose value is unsupported or contradicts others."""
        return self._wrong((name,), expected, self.content.get(name))

    def missing(self, names: Sequence[str]) -> ValueError:
        """Return the error for a required field that is missing."""
        known = ", ".join(name[:40] for name in sorted(map(str, self.content))[:12]) or "nothing"
        return ValueError(
            f"expected the field {' or '.join(names)} in a {self.family} configuration, got {known}"
        )

    def _find(self, names: Sequence[str]) -> object:
        values = (self.content.get(name) for name in names)
        return next((value for value in values if value is not None), None)

    def _whole(self, names: Sequence[str], *, least: int) -> int | None:
        value = self._find(names)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None:
            return None
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not least <= value <= LARGEST_SIZE
        ):
            raise self._wrong(names, f"a whole number in {least} ... 2^40", value)
        return value

    def _wrong(self, names: Sequence[str], expected: str, value: object) -> ValueError:
        named = next(filter(self.has, names), names[0])
        return ValueError(
            f"expected {expected} for {named} of a {self.family} configuration, "
            f"got {_SHORT.repr(value)}"
        )


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


Reader = Callable[[Fields, str], Model]
"""Makes a model from a configuration and the model's name in tables."""
