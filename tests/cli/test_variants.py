"""The list of variants says of each what its configuration says, and refuses what does not fit."""

import dataclasses

import pytest

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.families.sizes import load_size
from qkvary.arch.labels import format_label, parse_variant
from qkvary.arch.models import count_kinds
from qkvary.arch.table import VARIANTS
from qkvary.costs.candidates import choose_candidates
from qkvary.costs.parameters import attention_parameters
from qkvary.planning.advice import published_change
from tests.conftest import Typed


def test_every_variant_of_the_table_is_listed_once(typed: Typed) -> None:
    labels = [row["label"] for row in typed.json("variants")["variants"]]
    assert labels == [entry.label for entry in VARIANTS]


def test_figures_are_those_of_the_layer(typed: Typed) -> None:
    document = typed.json("variants", "--d-model", "96", "--num-heads", "12", "--length", "7")
    sizes = {"d_model": 96, "num_heads": 12, "head_dim": None, "length": 7, "dtype": "float32"}
    assert document["layer"] == {**sizes, "bias": True, "out_bias": True, "model": None}
    for row in document["variants"]:
        variant = parse_variant(row["label"])
        causal = variant.core != "sima"
        layer = AttentionConfig(d_model=96, num_heads=12, variant=variant, causal=causal)
        assert row["parameters"]["total"] == attention_parameters(layer).total
        kept = sum(layer.width(source) for source in variant.cached)
        state = 0
        if variant.core.startswith("linear"):
            kept, state = 0, 12 * 8 * (8 if "identity" in variant.core else 9)
        assert row["cache_bytes_per_token"] == (4 * kept if causal else None)
        assert row["state_bytes"] == 4 * state
        assert (row["cached"] == []) == (state > 0)
        assert row["macs_per_sequence"] == pytest.approx(7 * row["macs_per_token"], abs=7)
        assert row["tuple"]
        assert row["meaning"]
        assert row["equation"].startswith(("softmax(", "R⁻¹(softmax(")) == (
            variant.core == "softmax"
        )


def test_any_spelling_and_any_combination_can_be_asked_for(typed: Typed) -> None:
    rows = typed.json("variants", "--label", "q,k=v", "--label", "i-k=v/2@alibi")["variants"]
    assert [row["label"] for row in rows] == ["Q-K=V", "I-K=V/2@alibi"]
    assert rows[1]["origin"] == "not in the table"
    assert rows[0]["cached"] == ["k"]


@pytest.mark.parametrize("name", ["lm-300m", "lm-10m", "gemma-3-4b", "llama-3.1-8b"])
def test_a_layer_of_a_model_is_counted(name: str, typed: Typed) -> None:
    (kind, *_), _ = zip(*count_kinds(load_size(name).layers), strict=True)
    own = kind.attention.config
    bare = dataclasses.replace(own.variant, positions="none", window=None)
    found = typed.json("variants", "--model", name.upper(), "--label", format_label(bare))
    assert found["variants"][0]["parameters"]["total"] == attention_parameters(own).total


def test_a_published_quality_is_that_of_a_plan(typed: Typed) -> None:
    """MQA of 12 heads saves another share of the cache than that of the papers' 16."""
    labels = ("Q-K=V", "GQA-3", "MQA")
    asked = [word for label in labels for word in ("--label", label)]
    rows = typed.json("variants", "--model", "gpt2", *asked)["variants"]
    planned = choose_candidates(load_size("gpt2"), labels).rows[-3:]
    changes = [published_change(one, "300M") for one in planned]
    assert [one and one.printed for one in changes] == ["+3.1 %", "+0.7 %", None]
    assert [row["published"] and row["published"]["change"] for row in rows] == [
        one and one.printed for one in changes
    ]
