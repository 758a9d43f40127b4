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

    Methods take the names of one field, the current name first; the first name present counts.
    A null counts as absent. A missing or invalid value raises ``ValueError``.
    """

    def __init__(self, content: Mapping[str, object], family: str) -> None:
        self.content = content
        self.family = family

    def has(self, *names: str) -> bool:
        """Return whether one of the names is present and not null."""
        return any(self.content.get(name) is not None for name in names)

    def mentions(self, name: str) -> bool:
        """Return whether the name is present, even with the value null."""
        return name in self.content

    def replace(self, **changes: object) -> "Fields":
        """Return the configuration with other values in some fields."""
        return Fields({**self.content, **changes}, self.family)

    def size(self, *names: str, default: int | None = None) -> int:
        """Return the field's value, which must be a positive whole number.

        The field is required unless a default is given.
        """
        found = self.optional_size(*names)
        if found is not None:
            return found
        if default is not None:
            return default
        raise self.missing(names)

    def optional_size(self, *names: str) -> int | None:
        """Return the field's value, which must be a positive whole number; ``None`` if absent."""
        value = self._find(names)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_SIZE:
            raise self._wrong(names, "a whole number in 1 ... 2^40", value)
        return value

    def count(self, *names: str, default: int = 0) -> int:
        """Return the field's value, which must be a whole number of at least 0.

        Returns ``default`` if the field is absent.
        """
        value = self._find(names)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST_SIZE:
            raise self._wrong(names, "a whole number in 0 ... 2^40", value)
        return value

    def layers(self, *names: str) -> int:
        """Return the field's value, which must be a plausible number of layers."""
        found = self.size(*names)
        if found > MOST_LAYERS:
            raise self._wrong(names, f"at most {MOST_LAYERS:,} layers", found)
        return found

    def flag(self, *names: str, default: bool) -> bool:
        """Return the field's value, true or false; ``default`` if the field is absent."""
        value = self._find(names)
        if value is not None and not isinstance(value, bool):
            raise self._wrong(names, "true or false", value)
        return default if value is None else value

    def number(self, *names: str, default: float) -> float:
        """Return the field's value, a finite number; ``default`` if the field is absent."""
        value = self._find(names)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            raise self._wrong(names, "a number", value)
        return float(value)

    def text(self, *names: str, default: str) -> str:
        """Return the field's value, a string; ``default`` if the field is absent."""
        value = self._find(names)
        if value is not None and not isinstance(value, str):
            raise self._wrong(names, "a text", value)
        return default if value is None else value

    def items(self, *names: str) -> tuple[object, ...] | None:
        """Return the field's value, a list; ``None`` if the field is absent."""
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
        """Return the field's value, ``length`` words from ``choices``; ``None`` if it is absent."""
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
        """Return the set of layer numbers in the field's list; ``None`` if the field is absent."""
        items = self.items(*names)
        if items is None:
            return None
        found: list[int] = []
        for item in items:
            if isinstance(item, bool) or not isinstance(item, int):
                raise self.refuse(names[0], "a list of layer numbers")
            found.append(item)
        return frozenset(found)

    def section(self, *names: str) -> "Fields | None":
        """Return the nested configuration in the field; ``None`` if the field is absent."""
        value = self._find(names)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._wrong(names, "a nested configuration", value)
        return Fields(cast("Mapping[str, object]", value), self.family)

    def nested(self, name: str) -> "Fields":
        """Return the nested configuration in the field, empty if the field is absent."""
        return self.section(name) or Fields({}, self.family)

    def refuse(self, name: str, expected: str) -> ValueError:
        """Return the error for a field whose value is unsupported or contradicts others."""
        return self._wrong((name,), expected, self.content.get(name))

    def _find(self, names: Sequence[str]) -> object:
        for name in names:
            value = self.content.get(name)
            if value is not None:
                return value
        return None

    def missing(self, names: Sequence[str]) -> ValueError:
        """Return the error for a required field that is missing."""
        spelled = " or ".join(names)
        known = ", ".join(name[:40] for name in sorted(map(str, self.content))[:12]) or "nothing"
        return ValueError(
            f"expected the field {spelled} in a {self.family} configuration, got {known}"
        )

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
