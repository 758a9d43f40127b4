"""Published changes of quality, their rounding intervals, and dominance."""

import dataclasses

import pytest

from qkvary.planning.quality import SEEDS, Size, compare, qualities, quality_of


@pytest.mark.parametrize(("size", "half"), [("300M", 0.005), ("1.2B", 0.0005)])
def test_changes_follow_from_the_printed_perplexities(size: Size, half: float) -> None:
    """That they are printed is in ``tests/papers/test_tables.py``."""
    found = {quality.variant: quality for quality in qualities(size)}
    base = found["QKV"].perplexity
    for label, quality in found.items():
        assert quality.seeds == SEEDS == 1
        assert quality.source.startswith("Do Transformers Need Three Projections?")
        if label == "QKV":
            assert (quality.low, quality.change_percent, quality.high) == (0, 0, 0)
            assert quality.caveats == ()
            continue
        own = quality.perplexity
        assert quality.change_percent == pytest.approx(100 * (own - base) / base)
        assert quality.low == pytest.approx(100 * (own - half - base - half) / (base + half))
        assert quality.high == pytest.approx(100 * (own + half - base + half) / (base - half))
        assert any("seed" in line or "one network" in line for line in quality.caveats)
        assert any("padding" in line for line in quality.caveats)


def test_any_spelling_is_read_and_missing_figures_stay_missing() -> None:
    assert quality_of("q,k=v") == quality_of("Q-K=V")
    assert quality_of("GQA-8") is None
    assert quality_of("GQA-4", "1.2B") is None
    assert quality_of("I-K-V") is None


def test_a_variant_is_surely_dominated_where_the_intervals_do_not_overlap() -> None:
    quality = quality_of("MQA")
    assert quality is not None
    qualities = {
        name: dataclasses.replace(quality, change_percent=middle, low=middle - 1, high=middle + 1)
        for name, middle in {"first": 3.0, "near": 4.0, "far": 5.0, "best": 2.5}.items()
    }
    costs = {"first": 1, "near": 1, "far": 2, "best": 9}
    found = compare({name: (costs[name], one) for name, one in qualities.items()})
    assert found == {
        "first": ("frontier", ()),
        "near": ("dominated by the printed digits only", ("first",)),
        "far": ("dominated", ("first", "near")),
        "best": ("frontier", ()),
    }
