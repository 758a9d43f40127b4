"""Every published figure is recomputed, against its printed digits or arithmetic of its own."""

import dataclasses
from collections import Counter

import pytest

from qkvary.papers.catalog import published_names
from qkvary.papers.derivation import Alternative, Derivation
from qkvary.papers.recomputation import (
    DERIVATIONS,
    VERDICTS,
    FigureVerdict,
    Recomputed,
    count_verdicts,
    judge,
    recompute,
)
from qkvary.papers.tables import load_published
from qkvary.studies.published_tables import PublishedFigure
from qkvary.text.printed import printed_range
from tests.papers.published_arithmetic import expected

EVERY = tuple(one for name in published_names() for one in recompute(name))
NUMBERS = expected()
Key = tuple[str, str, str]


def key_of(one: Recomputed) -> Key:
    return one.table, one.figure.row, one.figure.column


@pytest.mark.parametrize("name", published_names())
def test_every_figure_of_a_table(name: str) -> None:
    for one in recompute(name):
        check_figure(one)


def check_figure(one: Recomputed) -> None:
    key = key_of(one)
    if one.derivation is None:
        assert key not in NUMBERS
        assert one.verdict == "stated" or (one.verdict, one.why) == ("measured", "")
        number = one.figure.value is not None or printed_range(one.figure) is not None
        assert one.verdict == "stated" or number
        return
    assert bool(one.why) == one.needs_explanation
    assert one.derivation.formula
    if key in NUMBERS:
        assert one.derivation.value == pytest.approx(NUMBERS[key], rel=1e-9, abs=1e-9)
    if one.derivation.spread:
        low, high = one.derivation.spread
        assert low <= one.derivation.value <= high


def test_expected_figures_exist() -> None:
    assert set(NUMBERS) <= {key_of(one) for one in EVERY}
    assert set(DERIVATIONS) <= set(published_names())


def test_counts_are_of_all_figures() -> None:
    totals = Counter[str]()
    for name in published_names():
        counts = count_verdicts(name)
        assert sum(counts.values()) == len(load_published(name).figures) == len(recompute(name))
        totals.update(counts)
    assert set(totals) == set(VERDICTS)
    recomputed = {"equal": 320, "rounding": 34, "other convention": 46, "wrong": 25}
    assert totals == {**recomputed, "measured": 267, "stated": 56}


PRINTED = PublishedFigure(
    row="row", variant=None, column="value", printed="33%", value=33.0, std=None, note=""
)


def figure(printed: str, value: float | None) -> PublishedFigure:
    return dataclasses.replace(PRINTED, printed=printed, value=value)


@pytest.mark.parametrize(
    ("shown", "derivation", "verdict"),
    [
        (figure("33%", 33.0), None, "measured"),
        (figure("words", None), None, "stated"),
        (figure("33%", 33.0), Derivation(value=33.4, formula="f"), "equal"),
        (figure("33%", 33.0), Derivation(value=33.9, formula="f"), "rounding"),
        (figure("33%", 33.0), Derivation(value=34.2, formula="f"), "wrong"),
        (figure("33%", 33.0), Derivation(value=34.2, formula="f", spread=(33, 35)), "rounding"),
        (figure("33%", 33.0), Derivation(value=36.2, formula="f", spread=(35, 37)), "wrong"),
        (figure("30-40%", None), Derivation(value=34.2, formula="f"), "equal"),
        (figure("30-40%", None), Derivation(value=41.0, formula="f"), "wrong"),
        (figure("K only", None), Derivation(value="K", formula="f"), "equal"),
        (figure("K + V", None), Derivation(value="K", formula="f"), "wrong"),
        (figure("over 50%", None), Derivation(value=48.0, formula="f", holds=False), "wrong"),
        (figure("over 50%", None), Derivation(value=51.0, formula="f", holds=True), "equal"),
        (figure("~30%", 30.0), Derivation(value=27.5, formula="f"), "rounding"),
        (figure("30%", 30.0), Derivation(value=27.5, formula="f"), "wrong"),
        (figure("5,900", 5900.0), Derivation(value=5905.6, formula="f"), "rounding"),
    ],
)
def test_verdicts(
    shown: PublishedFigure, derivation: Derivation | None, verdict: FigureVerdict
) -> None:
    assert judge(shown, derivation)[0] == verdict


def test_a_convention_comes_before_a_rounding_and_a_slip_is_wrong() -> None:
    exact = Alternative(value=33.1, convention="other units")
    derivation = Derivation(value=33.9, formula="f", note="A note.")
    with_other = dataclasses.replace(derivation, others=(exact,))
    said = "With other units, the number is 33.1. A note."
    assert judge(PRINTED, with_other) == ("other convention", exact, said)
    with_slip = dataclasses.replace(derivation, slips=(exact,))
    said = "The number 33.1 results from other units. A note."
    assert judge(PRINTED, with_slip) == ("wrong", exact, said)
    said = "The number 33.9 was truncated instead of rounded. A note."
    assert judge(PRINTED, derivation) == ("rounding", None, said)
