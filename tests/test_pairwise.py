"""The cases of the default run hold every pair that occurs in the product, and are few."""

import itertools
from collections.abc import Hashable, Iterable

import pytest

from tests.pairwise import cover, pairwise

COLOURS = ("red", "green", "blue", "grey", "white")


def pairs(cases: Iterable[Iterable[tuple[str, Hashable]]]) -> set[frozenset[tuple[str, Hashable]]]:
    return {frozenset(pair) for case in cases for pair in itertools.combinations(case, 2)}


def marked(mark: pytest.MarkDecorator) -> dict[tuple[object, ...], bool]:
    """Whether each case of a mark is slow."""
    return {tuple(param.values): bool(param.marks) for param in mark.args[1]}


def test_every_pair_is_held_by_few_cases() -> None:
    product = tuple(
        (("size", size), ("colour", colour), ("flat", flat), ("new", new))
        for size, colour, flat, new in itertools.product(
            range(7), COLOURS, (False, True), (False, True)
        )
    )
    chosen = [product[place] for place in cover(product)]
    assert pairs(chosen) == pairs(product)
    # 35 sizes with colours need one case each.
    assert 35 <= len(chosen) <= 40
    assert len(product) == 140


def test_every_value_is_held_by_fewer_cases() -> None:
    product = tuple(
        (("size", size), ("colour", colour))
        for size, colour in itertools.product(range(7), COLOURS)
    )
    chosen = [product[place] for place in cover(product, 1)]
    assert {part for case in chosen for part in case} == {part for case in product for part in case}
    assert len(chosen) == 7


def test_pairs_that_do_not_occur_are_not_asked_for() -> None:
    cases = ((("a", 1), ("b", 1)), (("a", 2), ("b", 2)), (("a", 1), ("b", 1)))
    assert cover(cases) == [0, 1]


def test_a_single_option_keeps_every_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.pairwise.EVERY_CASE", True)
    assert marked(pairwise("size", [(3,), (5,), (3,)])) == {(3,): True, (5,): False}


def test_the_rest_of_a_product_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.pairwise.EVERY_CASE", True)
    mark = pairwise("size, colour, flat", itertools.product((3, 5), COLOURS, (False, True)))
    assert mark.args[0] == ["size", "colour", "flat"]
    found = marked(mark)
    assert len(found) == 20
    assert list(found.values()).count(False) == 10
    monkeypatch.setattr("tests.pairwise.EVERY_CASE", False)
    fewer = pairwise("size, colour, flat", itertools.product((3, 5), COLOURS, (False, True)))
    assert len(marked(fewer)) == 10


def test_pairs_are_those_of_the_parts_of_a_value() -> None:
    """4 shapes by 2 colours are 8 cases; pairs of a width, a height and a colour need fewer."""
    shapes = itertools.product((3, 5), (7, 11))
    mark = pairwise(
        "shape, colour",
        itertools.product(shapes, ("red", "blue")),
        fields={"shape": lambda shape: {"width": shape[0], "height": shape[1]}},
    )
    needed = [values for values, is_slow in marked(mark).items() if not is_slow]
    assert len(needed) == 5
    assert {shape for shape, _ in needed} == {(3, 7), (3, 11), (5, 7), (5, 11)}  # type: ignore[misc]
