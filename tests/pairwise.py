"""Pairwise testing: a few cases that together hold every pair of values of a test's options.

A mistake seldom needs three options at once. The cases that no pair needs are left out; with
``EVERY_CASE=1`` in the environment they have the marker ``slow``.
"""

import functools
import heapq
import itertools
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import pytest

EVERY_CASE = bool(os.environ.get("EVERY_CASE"))
"""Whether the rest of a product is collected too."""
Fields = Mapping[str, Hashable]
Case = tuple[tuple[str, Hashable], ...]
"""The value of each field, in the same order in every case."""


@functools.cache
def cover(cases: tuple[Case, ...], together: int = 2) -> list[int]:
    """Return the places of cases that together hold every pair of field values that occurs.

    Greedy: the next one is always the first of those that add most. With ``together=1`` the cases
    hold every value instead of every pair.
    """
    # A field by itself is a pair with itself.
    parts = [set(itertools.combinations_with_replacement(case, together)) for case in cases]
    missing = set[object]().union(*parts)
    # A part adds ever less, so that a gain counted earlier is an upper bound.
    queue = [(-len(part), place) for place, part in enumerate(parts)]
    heapq.heapify(queue)
    chosen: list[int] = []
    while missing:
        _, place = heapq.heappop(queue)
        gain = -len(parts[place] & missing)
        if queue and (gain, place) > queue[0]:
            heapq.heappush(queue, (gain, place))
            continue
        chosen.append(place)
        missing -= parts[place]
    return sorted(chosen)


def pairwise(
    names: str,
    cases: Iterable[Sequence[Any]],
    *,
    fields: Mapping[str, Callable[[Any], Fields]] | None = None,
    ids: Callable[[Any], object] | None = None,
    together: int = 2,
) -> pytest.MarkDecorator:
    """Parametrize a test with cases that hold every pair of values.

    Args:
        names: The parameters, as ``pytest.mark.parametrize`` takes them.
        cases: A value for each parameter; ``itertools.product`` for all of their combinations.
        fields: By parameter, what a value is made of, where that is more than one thing: pairs
            are then those of its parts.
        ids: What to call a value.
        together: 1 where every value suffices: where no code depends on two of them.
    """
    columns, listed = names.replace(",", " ").split(), [tuple(case) for case in cases]
    described = [_fields(columns, case, fields or {}) for case in listed]
    needed = set(cover(tuple(described), together))
    return pytest.mark.parametrize(
        columns,
        [
            pytest.param(*case, marks=() if place in needed else pytest.mark.slow)
            for place, case in enumerate(listed)
            if place in needed or EVERY_CASE
        ],
        ids=ids,
    )


def _fields(
    columns: Sequence[str],
    case: Sequence[Any],
    fields: Mapping[str, Callable[[Any], Fields]],
) -> Case:
    found: dict[str, Hashable] = {}
    for name, value in zip(columns, case, strict=True):
        found |= (
            {f"{name}.{part}": content for part, content in fields[name](value).items()}
            if name in fields
            else {name: value}
        )
    return tuple(found.items())
