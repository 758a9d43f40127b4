"""Fifteen sharings, each with one name."""

import itertools

import pytest

from qkvary.arch.sharing import SHARINGS, Sharing, share


def test_there_are_fifteen_each_with_one_name() -> None:
    assert len(SHARINGS) == len(set(SHARINGS)) == 15
    assert len({sharing.format_label({}) for sharing in SHARINGS}) == 15
    assert len({sharing.format_tuple({}) for sharing in SHARINGS}) == 15


def test_every_naming_of_roles_is_one_of_the_fifteen() -> None:
    found = {share(*names) for names in itertools.product(("a", "b", "c", "x"), repeat=3)}
    assert found == set(SHARINGS)


def test_names_follow_what_is_cached() -> None:
    assert share("one", "two", "one") == Sharing(query="v", key="k", value="v")
    with pytest.raises(ValueError, match=r"\('q', 'k', 'k'\), got \('q', 'v', 'v'\)"):
        Sharing(query="q", key="v", value="v")


@pytest.mark.parametrize(
    ("names", "label", "spelled", "projections", "cached", "symmetric"),
    [
        (("q", "k", "v"), "QKV", "q,k,v", ("q", "k", "v"), ("k", "v"), False),
        (("k", "k", "v"), "Q=K-V", "q=k,v", ("k", "v"), ("k", "v"), True),
        (("one", "two", "two"), "Q-K=V", "q,k=v", ("q", "k"), ("k",), False),
        (("k", "k", "k"), "Q=K=V", "q=k=v", ("k",), ("k",), True),
        (("v", "k", "v"), "Q=V", "q=v,k", ("k", "v"), ("k", "v"), False),
        (("x", "k", "v"), "I-K-V", "x,k,v", ("k", "v"), ("k", "v"), False),
        (("x", "a", "a"), "I-K=V", "x,k=v", ("k",), ("k",), False),
        (("q", "x", "v"), "Q-I-V", "q,x,v", ("q", "v"), ("x", "v"), False),
        (("q", "x", "x"), "Q-I-I", "q,x,x", ("q",), ("x",), False),
        (("x", "x", "x"), "I-I-I", "x,x,x", (), ("x",), True),
    ],
)
def test_what_follows_from_a_sharing(
    names: tuple[str, str, str],
    label: str,
    spelled: str,
    projections: tuple[str, ...],
    cached: tuple[str, ...],
    symmetric: bool,
) -> None:
    sharing = share(*names)
    assert (sharing.format_label({}), sharing.format_tuple({})) == (label, spelled)
    assert (sharing.projections, sharing.cached) == (projections, cached)
    assert sharing.is_symmetric is symmetric
