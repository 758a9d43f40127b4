"""Every published figure is recomputed, with the verdict that was found by hand."""

import dataclasses

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
    recompute_figure,
)
from qkvary.papers.tables import load_published
from qkvary.studies.published_tables import PublishedFigure
from tests.papers.published_arithmetic import expected

EVERY = tuple(one for name in published_names() for one in recompute(name))
NUMBERS = expected()
Key = tuple[str, str, str]

FOUND_BY_HAND: dict[FigureVerdict, dict[str, str]] = {
    "wrong": {
        "key-value-table-2": "QKV|swap QKV|sub KV+Pos|swap KV+Pos|sub KV|swap KV|sub KV|sort",
        "poster-1.2b": "GQA-8|cache_reduction Q-MQA|cache_reduction",
        "poster-downstream": "Q-MQA|cache_reduction",
        "three-projections-table-2": "Q=K-V|sort",
        "three-projections-table-3": "Q-K=V|average",
        "three-projections-table-8": "4096_tokens|three",
        "three-projections-table-10": "QKV|attention",
    },
    "other convention": {
        "overview-article-savings": "Grouped-Query_(GQA)|cache",
        "key-value-table-1": (
            "QKV|computation QKV|parameters KV+Pos|computation KV+Pos|parameters KV|computation "
            "KV|parameters"
        ),
        "three-projections-scenario": "QKV_or_Q=K-V|cache Q-K=V|cache",
        "three-projections-table-1": "(Q=K-V)+|computation (Q=K=V)+|computation",
        "three-projections-table-7": (
            "QKV|at_32k Q=K-V|at_32k Q-K=V|at_32k Q=K=V|at_32k GQA-4|at_32k MQA|at_32k "
            "Q-GQA-4|at_32k"
        ),
        "three-projections-table-10": "GQA-8|cache MQA|cache Q-GQA-8|cache Q-MQA|cache",
    },
    "rounding": {
        "poster-operating-points": "Generous|change Tight|change Very_tight|change",
        "three-projections-table-4": (
            "GQA-4|change MQA|change Q-GQA-4|change Q-MQA|change Q=K-V|train_perplexity "
            "Q=K=V|train_perplexity MQA|train_perplexity Q-MQA|train_perplexity "
            "QKV|validation_perplexity Q-K=V|validation_perplexity Q=K-V|validation_perplexity "
            "Q=K=V|validation_perplexity GQA-4|validation_perplexity MQA|validation_perplexity "
            "Q-GQA-4|validation_perplexity Q-MQA|validation_perplexity"
        ),
        "three-projections-table-8": "512_tokens|three",
        "three-projections-table-9": (
            "Cloud_(quality)|change Edge_(aggressive)|change IoT/Mobile|change"
        ),
        "three-projections-table-10": "QKV|cache Q-K=V|cache",
        "three-projections-table-11": "GQA-4|change MQA|change Q-GQA-4|change Q-MQA|change",
    },
}
"""Figures of tables that are not equal, as ``row|column`` with spaces as underscores."""

SENTENCES: dict[str, dict[str, FigureVerdict]] = {
    "three-projections-text": {
        "QKV cache at 128k tokens (GB)": "other convention",
        "Q-K=V cache at 128k tokens (GB)": "other convention",
        "QKV cache, 32 users at 32k (GB)": "other convention",
        "Q-K=V cache, 32 users at 32k (GB)": "other convention",
        "cache saved by Q-K=V, 32 users at 32k (GB)": "other convention",
        "cache reduction of Q-GQA-g": "wrong",
        "MQA cache at 1.2B and 32k (MB)": "other convention",
        "Q-MQA cache at 1.2B and 32k (MB)": "other convention",
        "MQA cache at 1.2B, 32 users (GB)": "other convention",
        "Q-MQA cache at 1.2B, 32 users (GB)": "other convention",
        "GQA-8 cache reduction at 1.2B (%)": "wrong",
        "Q-MQA cache reduction at 1.2B (%)": "wrong",
        "MQA cache at 1.2B, times smaller than QKV": "wrong",
        "Q-MQA cache at 1.2B, times smaller than QKV": "wrong",
        "Q-MQA cache at 1.2B, 'nearly' so many times smaller": "wrong",
        "attention's share of parameters, section 2.4 (%)": "rounding",
        "attention's share of parameters, section 3.3.2 (%)": "other convention",
        "attention's share of computation at 4,096 tokens, all variants (%)": "wrong",
        "gains grow with context (caption of Table 8)": "wrong",
        "(Q=K-V)+ costs less than QKV below (tokens)": "other convention",
        "change of Q=K-V, figure 7 and section 4 (%)": "rounding",
        "change of Q=K-V in training, section 3.3.1 (%)": "other convention",
        "MQA against QKV at 1.2B": "wrong",
        "Q-K=V on the frontier of perplexity and cache": "wrong",
        "tokens of 1.2B training, caption of Table 10 (billions)": "wrong",
        "variants trained on TinyImageNet": "wrong",
    },
    "poster-text": {
        "attention's share of parameters (%)": "rounding",
        "QKV cache at 32K (GB)": "other convention",
        "Q-K=V cache at 32K (GB)": "other convention",
        "QKV cache at 128K (GB)": "other convention",
        "Q-K=V cache at 128K (GB)": "other convention",
        "steps at 1.2B": "wrong",
    },
    "query-identity-text": {"tokens per gradient step": "rounding"},
    "key-value-text": {
        "parameters of KV attention, of QKV's (%)": "other convention",
        "FLOPs of KV attention, of QKV's (%)": "other convention",
    },
}

WORDS: dict[Key, str] = {
    ("three-projections-text", "cache reduction of Q-GQA-g", "value"): "1 - g/(2H)",
    (
        "three-projections-text",
        "gains grow with context (caption of Table 8)",
        "value",
    ): "6.8 % at 128 tokens, 4.5 % at 4,096",
    (
        "three-projections-text",
        "parameters and computation of Q-K=V and Q=K-V",
        "value",
    ): "identical",
    ("three-projections-text", "MQA against QKV at 1.2B", "value"): "+1.06 % perplexity",
    (
        "three-projections-text",
        "order of the variants at both sizes",
        "value",
    ): "QKV, GQA, MQA, Q-K=V, Q-GQA, Q-MQA",
    (
        "three-projections-text",
        "Q-K=V on the frontier of perplexity and cache",
        "value",
    ): "dominated by GQA-4 and MQA",
    (
        "three-projections-text",
        "change of perplexity of head-sharing and combined variants",
        "value",
    ): "at most 4.89 %",
    (
        "poster-text",
        "change of Q-K=V shrinks with size",
        "value",
    ): "+3.13 % at 300M, +2.48 % at 1.2B",
}

PROJECTIONS = {
    "QKV": ("Q, K, V", "K+V"),
    "Q=K-V": ("Q=K, V", "K+V"),
    "(Q=K-V)+": ("Q=K, V, +PE", "K+V"),
    "Q-K=V": ("Q, K=V", "K"),
    "Q=K=V": ("Q=K=V", "K"),
    "(Q=K=V)+": ("Q=K=V, +PE", "K"),
    "GQA-4": ("Q, K, V (4 groups)", "K+V"),
    "MQA": ("Q, K, V (1 head)", "K+V"),
    "Q-GQA-4": ("Q, K=V (4 groups)", "K"),
    "Q-MQA": ("Q, K=V (1 head)", "K"),
}
FORMULAS = {
    "QKV": ("3nd^2", "3d^2"),
    "Q=K-V": ("2nd^2", "2d^2"),
    "Q-K=V": ("2nd^2", "2d^2"),
    "(Q=K-V)+": ("2nd^2 + H n^2 m", "2d^2 + m"),
    "Q=K=V": ("nd^2", "d^2"),
    "(Q=K=V)+": ("nd^2 + H n^2 m", "d^2 + m"),
}

MEASURED = {
    "key-value-notebook-characters": "runs seconds",
    "three-projections-table-2": "tasks",
    "three-projections-table-3": "tasks",
    "key-value-table-3": "tasks",
    "three-projections-table-4": "train_loss validation_loss tokens_per_second",
    "three-projections-table-10": "perplexity",
    "poster-1.2b": "perplexity",
    "poster-300m": "perplexity",
    "poster-downstream": "accuracy",
    "poster-measured": "low high",
    "query-identity-table-2": "validation_loss",
    "three-projections-text": "cosines ranks",
}
"""Tables with figures that nothing can be recomputed for, beside the notebooks."""


def key_of(one: Recomputed) -> Key:
    return one.table, one.figure.row, one.figure.column


def by_hand(one: Recomputed) -> FigureVerdict:
    """The verdict that was found by hand for a figure that something follows for."""
    name, row, column = key_of(one)
    spelt = f"{row.replace(' ', '_')}|{column}"
    for verdict, tables in FOUND_BY_HAND.items():
        if spelt in tables.get(name, "").split():
            return verdict
    if name == "overview-article-savings":
        far = column == "parameters" and not row.startswith("Standard")
        return "other convention" if far or one.figure.printed == "up to 8x" else "equal"
    return SENTENCES.get(name, {}).get(row, "equal")


def words_of(one: Recomputed) -> str:
    """The words or formula that belong to a figure, by hand."""
    if key_of(one) in WORDS:
        return WORDS[key_of(one)]
    label = one.figure.variant or ""
    if one.figure.column in ("computation", "parameters"):
        return FORMULAS[label][one.figure.column == "parameters"]
    return PROJECTIONS[label][one.figure.column == "cached"]


@pytest.mark.parametrize("name", published_names())
def test_every_figure_of_a_table(name: str) -> None:
    for one in recompute(name):
        check_figure(one)


def check_figure(one: Recomputed) -> None:
    key = key_of(one)
    if one.derivation is None:
        assert key not in NUMBERS
        assert one.verdict in ("measured", "stated")
        assert one.verdict == "stated" or one.figure.value is not None
        known = key[0] in MEASURED or "notebook" in key[0]
        assert known or one.verdict == "stated"
        assert not one.why
        return
    assert one.verdict == by_hand(one)
    assert bool(one.why) == one.needs_explanation
    assert one.derivation.formula
    if isinstance(one.derivation.value, str):
        assert one.derivation.value == words_of(one)
    else:
        assert one.derivation.value == pytest.approx(NUMBERS[key], rel=1e-9, abs=1e-9)
    if one.derivation.spread:
        low, high = one.derivation.spread
        assert low <= one.derivation.value <= high


def test_expected_figures_exist() -> None:
    keys = {key_of(one) for one in EVERY}
    assert set(NUMBERS) | set(WORDS) <= keys
    assert {(name, row, "value") for name, rows in SENTENCES.items() for row in rows} <= keys
    spelt = {(name, f"{row.replace(' ', '_')}|{column}") for name, row, column in keys}
    for tables in FOUND_BY_HAND.values():
        for name, figures in tables.items():
            assert {(name, figure) for figure in figures.split()} <= spelt
    assert set(DERIVATIONS) <= set(published_names())


def test_counts_are_of_all_figures() -> None:
    totals = dict.fromkeys(VERDICTS, 0)
    for name in published_names():
        counts = count_verdicts(name)
        assert sum(counts.values()) == len(load_published(name).figures) == len(recompute(name))
        for verdict, number in counts.items():
            totals[verdict] += number
    assert totals == {
        "equal": 320,
        "rounding": 33,
        "other convention": 45,
        "wrong": 27,
        "measured": 259,
        "stated": 30,
    }


def find(name: str, row: str, column: str) -> Recomputed:
    table = load_published(name)
    return recompute_figure(table, table.figure(row, column))


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
    assert judge(PRINTED, with_other) == (
        "other convention",
        exact,
        "33.1 with other units. A note.",
    )
    with_slip = dataclasses.replace(derivation, slips=(exact,))
    assert judge(PRINTED, with_slip) == ("wrong", exact, "33.1 by other units. A note.")
    assert judge(PRINTED, derivation) == (
        "rounding",
        None,
        "33.9, truncated instead of rounded. A note.",
    )
