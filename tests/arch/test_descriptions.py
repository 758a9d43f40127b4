"""Words follow from the value."""

import pytest

from qkvary.arch.descriptions import describe, name_cached, name_changes
from qkvary.arch.labels import parse_variant


@pytest.mark.parametrize(
    ("label", "clauses", "cached"),
    [
        ("QKV", ["query, key and value each learned"], "K and V"),
        ("I-K=V/1", ["query is the layer input", "one KV head, read by every query head"], "K"),
        (
            "(Q=V-K[d/4])+@alibi@w8@t0.5",
            [
                "query and value read one projection",
                "projection k has rank d/4",
                "attention reaches 8 tokens",
                "softmax temperature 0.5",
            ],
            "K and V",
        ),
        ("Q[map]=K=V/2@rotary", ["2 KV heads, each read by a group of query heads"], "K"),
        ("Q=K-V@diag-mean", ["the diagonal of the scores is divided by its mean"], "K and V"),
        (
            "Q-K=V@w4@s8@soft",
            ["attention also reaches tokens at distances that 8 divides"],
            "K",
        ),
        (
            "Q=K=V@linear@decay-learned@undecayed-sum",
            ["weights are divided by their sum without the decay"],
            "a state",
        ),
        ("I-K-V@linear-relu@unnormalised", ["weights are not divided by their sum"], "a state"),
        ("Q-I-I", ["key and value are the layer input"], "x"),
    ],
)
def test_every_part_is_a_clause(label: str, clauses: list[str], cached: str) -> None:
    """The equations are evaluated in ``tests/contracts/test_printed_equations.py``."""
    variant = parse_variant(label)
    assert {*clauses} <= {*describe(variant).split("; ")}
    assert name_cached(variant) == cached


@pytest.mark.parametrize(
    ("label", "baseline", "words"),
    [
        ("Q-K=V", "QKV", "K=V"),
        ("Q-MQA", "QKV", "K=V with shared heads"),
        ("MQA", "QKV", "sharing heads"),
        # A value of its own has come back, which no word says.
        ("GQA-2", "Q-K=V", "GQA-2"),
        ("QKV", "Q-K=V", "QKV"),
    ],
)
def test_changes_are_named_only_where_words_say_all_of_them(
    label: str, baseline: str, words: str
) -> None:
    assert name_changes(parse_variant(label), parse_variant(baseline)) == words
