"""The table of variants: canonical labels, complete, and described in words."""

import re

import pytest

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.descriptions import describe, name_cached
from qkvary.arch.equations import write_equation
from qkvary.arch.labels import format_label
from qkvary.arch.sharing import SHARINGS
from qkvary.arch.table import VARIANTS, NamedVariant

PUBLISHED = (
    "QKV Q=K-V Q-K=V Q=K=V (Q=K-V)+ (Q=K=V)+ GQA-4 MQA Q-GQA-4 Q-MQA I-K-V I-K=V Q=V "
    "Q[residual]-K-V Q[residual-gelu]-K-V"
)


def test_labels_are_canonical_and_distinct() -> None:
    labels = [entry.label for entry in VARIANTS]
    assert len(labels) == len(set(labels))
    assert [format_label(entry.variant) for entry in VARIANTS] == labels


def test_the_table_is_complete() -> None:
    assert {entry.label for entry in VARIANTS} >= set(PUBLISHED.split())
    assert {entry.variant.sharing for entry in VARIANTS} == set(SHARINGS)


def test_no_two_entries_mean_the_same() -> None:
    assert len({describe(entry.variant) for entry in VARIANTS}) == len(VARIANTS)


@pytest.mark.parametrize("entry", VARIANTS, ids=lambda entry: entry.label)
def test_every_entry_fits_a_layer_and_is_described(entry: NamedVariant) -> None:
    # A decay is causal; SimA is not.
    causal = entry.variant.decay != "none"
    config = AttentionConfig(d_model=32, num_heads=4, variant=entry.variant, causal=causal)
    assert config.score_scale > 0
    sentence, equation = describe(entry.variant), write_equation(entry.variant)
    assert re.fullmatch(r"[a-z1-9].*[^.;]", sentence), sentence
    assert equation.startswith(("softmax(", "R⁻¹(softmax(")) == (entry.variant.core == "softmax")
    assert equation.count("(") == equation.count(")")
    assert name_cached(entry.variant)
