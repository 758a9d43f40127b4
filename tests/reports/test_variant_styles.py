import pytest

from qkvary.reports.variant_styles import FAMILIES, Family, family_of


@pytest.mark.parametrize(
    ("label", "key"),
    [
        ("QKV", "base"),
        ("Q-K=V", "share"),
        ("Q=V", "share"),
        ("(Q=K=V)+", "plus"),
        ("GQA-2", "heads"),
        ("Q-MQA", "both"),
        ("I-K=V", "identity"),
        ("Q[residual]-K-V", "identity"),
        ("QKV@alibi", "other"),
        ("<no label>", "other"),
    ],
)
def test_family_follows_from_the_variant(label: str, key: str) -> None:
    assert family_of(label, "QKV").key == key


def test_families_are_told_apart_without_colour() -> None:
    assert len({family.marker for family in FAMILIES}) == len(FAMILIES)


def luminance(colour: str) -> float:
    channels = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.key)
def test_names_can_be_read_on_both_grounds(family: Family) -> None:
    """WCAG AA for text."""
    assert contrast(family.light, "#fcfcfa") >= 4.5
    assert contrast(family.dark, "#12171c") >= 4.5
