"""Published changes of quality, their rounding intervals, and dominance."""

import math

import pytest

from qkvary.planning.quality import (
    REAL_FRACTIONS,
    SEEDS,
    Size,
    change_per_real_token,
    frontier_positions,
    qualities,
    quality_of,
)

PRINTED_300M = {
    "QKV": 5.11,
    "Q-K=V": 5.27,
    "Q=K-V": 5.36,
    "Q=K=V": 6.41,
    "GQA-4": 5.15,
    "MQA": 5.19,
    "Q-GQA-4": 5.32,
    "Q-MQA": 5.36,
}
PRINTED_1200M = {
    "QKV": 5.004,
    "Q-K=V": 5.128,
    "GQA-8": 5.030,
    "MQA": 5.057,
    "Q-GQA-8": 5.158,
    "Q-MQA": 5.212,
}


@pytest.mark.parametrize(
    ("size", "printed", "half"), [("300M", PRINTED_300M, 0.005), ("1.2B", PRINTED_1200M, 0.0005)]
)
def test_changes_follow_from_the_printed_perplexities(
    size: Size, printed: dict[str, float], half: float
) -> None:
    found = {quality.variant: quality for quality in qualities(size)}
    assert {label: quality.perplexity for label, quality in found.items()} == printed
    base = printed["QKV"]
    for label, quality in found.items():
        assert quality.seeds == SEEDS == 1
        assert quality.source.startswith("Do Transformers Need Three Projections?")
        if label == "QKV":
            assert (quality.low, quality.change_percent, quality.high) == (0, 0, 0)
            assert quality.caveats == ()
            continue
        own = printed[label]
        assert quality.change_percent == pytest.approx(100 * (own - base) / base)
        assert quality.low == pytest.approx(100 * (own - half - base - half) / (base + half))
        assert quality.high == pytest.approx(100 * (own + half - base + half) / (base - half))
        assert any("seed" in line or "One network" in line for line in quality.caveats)
        assert any("padding" in line for line in quality.caveats)


def test_any_spelling_is_read_and_missing_figures_stay_missing() -> None:
    assert quality_of("q,k=v") == quality_of("Q-K=V")
    assert quality_of("GQA-8") is None
    assert quality_of("GQA-4", "1.2B") is None
    assert quality_of("I-K-V") is None
    with pytest.raises(ValueError, match=r"expected a size out of 300M, 1\.2B, got '7B'"):
        quality_of("MQA", "7B")  # type: ignore[arg-type]


def test_dilution_is_undone_in_the_logarithm() -> None:
    loss, gap, fraction = 1.7, 0.04, 0.37
    diluted = 100 * (math.exp(fraction * (loss + gap)) / math.exp(fraction * loss) - 1)
    found = change_per_real_token(diluted, fraction)
    assert found == pytest.approx(100 * (math.exp(gap) - 1))


@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        ("GQA-4", [0.8, 1.5, 1.7, 2.0]),
        ("MQA", [1.6, 3.0, 3.5, 4.0]),
        ("Q-K=V", [3.1, 6.0, 7.1, 8.0]),
        ("Q=K-V", [4.9, 9.4, 11.2, 12.7]),
        ("Q-GQA-4", [4.1, 7.9, 9.4, 10.6]),
        ("Q=K=V", [25.4, 53.4, 65.5, 76.2]),
    ],
)
def test_changes_without_padding(variant: str, changes: list[float]) -> None:
    price = quality_of(variant)
    assert price
    found = [change_per_real_token(price.change_percent, share) for share in REAL_FRACTIONS]
    assert [round(one, 1) for one in found] == changes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((3.1, 0.0), "a share of real tokens in"),
        ((3.1, 1.5), "a share of real tokens in"),
        ((-100.0, 0.5), "a change above -100 %"),
    ],
)
def test_invalid_arguments_are_rejected(given: tuple[float, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        change_per_real_token(*given)


# Variants that nothing dominates, and of each other all that do, best perplexity first.
EXPECTED: dict[Size, tuple[str, dict[str, str]]] = {
    "300M": (
        "QKV GQA-4 MQA Q-MQA",
        {
            "Q-K=V": "GQA-4 MQA",
            "Q=K-V": "QKV GQA-4 MQA Q-K=V Q-GQA-4 Q-MQA",
            "Q=K=V": "GQA-4 MQA Q-K=V Q-GQA-4 Q-MQA",
            "Q-GQA-4": "MQA",
        },
    ),
    "1.2B": ("QKV GQA-8 MQA Q-MQA", {"Q-K=V": "GQA-8 MQA", "Q-GQA-8": "MQA"}),
}


@pytest.mark.parametrize("size", EXPECTED)
def test_dominance(size: Size) -> None:
    frontier, dominated = EXPECTED[size]
    found = {standing.variant: standing for standing in frontier_positions(size)}
    assert [label for label, one in found.items() if one.status == "frontier"] == frontier.split()
    for label, dominators in dominated.items():
        assert found[label].dominated_by == tuple(dominators.split())
        assert found[label].status == "dominated beyond rounding"
    assert set(found) == {*frontier.split(), *dominated}
