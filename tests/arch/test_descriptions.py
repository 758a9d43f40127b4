"""Words and equations follow from the value."""

import pytest

from qkvary.arch.descriptions import describe, name_cached, name_changes
from qkvary.arch.equations import write_equation
from qkvary.arch.labels import parse_variant
from qkvary.arch.table import VARIANTS


@pytest.mark.parametrize(
    ("label", "words", "equation", "cached"),
    [
        (
            "QKV",
            "query, key and value each learned",
            "softmax(s (x Wq) (x Wk)ᵀ) (x Wv)",
            "K and V",
        ),
        (
            "I-K=V/1",
            (
                "query is the layer input; key and value read one projection; "
                "one KV head, read by every query head"
            ),
            "softmax(s xₕ (x Wk)ᵀ) (x Wk)",
            "K",
        ),
        (
            "(Q=V-K[d/4])+@alibi@w8@t0.5",
            (
                "query and value read one projection; key learned; projection k has rank d/4; "
                "scores become tau a_ij + g(j): a temperature and a bias per key position; "
                "a penalty proportional to the distance |i-j| is added to the scores; "
                "attention reaches 8 tokens; softmax temperature 0.5"
            ),
            "softmax((τ s (x Wv) (x Ak Bk)ᵀ + 1 gᵀ - m |i-j|) / 0.5; |i-j| < 8) (x Wv)",
            "K and V",
        ),
        (
            "Q[map]=K=V/2@rotary",
            (
                "query, key and value read one projection; "
                "2 KV heads, each read by a group of query heads; "
                "the query is the shared source through a linear map of its own per head; "
                "query and key are rotated by their positions"
            ),
            "R⁻¹(softmax(s R(x Wk M) R(x Wk)ᵀ) R(x Wk))",
            "K",
        ),
        (
            "Q=K-V@diag-mean",
            (
                "value learned; query and key read one projection; "
                "the diagonal of the scores is divided by its mean"
            ),
            "softmax(diag-mean(s (x Wk) (x Wk)ᵀ)) (x Wv)",
            "K and V",
        ),
        (
            "Q=K-V@diag-norm-unscaled@t2.0",
            (
                "value learned; query and key read one projection; the diagonal of K Kᵀ is divided "
                "by its norm before the score scale is applied; softmax temperature 2"
            ),
            "softmax((s diag-norm((x Wk) (x Wk)ᵀ)) / 2) (x Wv)",
            "K and V",
        ),
        (
            "Q-K=V@w4@s8@t2.0@soft",
            (
                "query learned; key and value read one projection; attention reaches 4 tokens; "
                "attention also reaches tokens at distances that 8 divides; softmax temperature 2; "
                "no softmax: weights are the Gaussian kernel of query and key, not normalised"
            ),
            "exp((-s |(x Wq)ᵢ - (x Wk)ⱼ|² / 2) / 2; |i-j| < 4 or 8 divides i-j) (x Wk)",
            "K",
        ),
        (
            "Q=K=V@linear@decay-learned@undecayed-sum",
            (
                "query, key and value read one projection; weights decay with the distance, by a "
                "learned factor per KV head; no softmax: weights are products of 1 + elu of query "
                "and key; weights are divided by their sum without the decay"
            ),
            (
                "[(1 + elu(x Wk)) (1 + elu(x Wk))ᵀ ⊙ λ^(i-j) / Σⱼ (1 + elu(x Wk)) "
                "(1 + elu(x Wk))ᵀ] (x Wk)"
            ),
            "a state",
        ),
        (
            "I-K-V@linear-relu@unnormalised",
            (
                "key and value each learned; query is the layer input; no softmax: weights are "
                "products of relu of query and key; weights are not divided by their sum"
            ),
            "[s relu(xₕ) relu(x Wk)ᵀ] (x Wv)",
            "a state",
        ),
        (
            "Q-K=V@linear-identity",
            (
                "query learned; key and value read one projection; no softmax: weights are "
                "products of query and key, not normalised"
            ),
            "[s (x Wq) (x Wk)ᵀ] (x Wk)",
            "a state",
        ),
        (
            "I-K-V@sima",
            (
                "key and value each learned; query is the layer input; no softmax: each channel of "
                "query and key is divided by its l1 norm over the tokens"
            ),
            "(xₕ / ‖xₕ‖₁) ((x Wk) / ‖x Wk‖₁)ᵀ (x Wv)",
            "K and V",
        ),
        (
            "Q-I-I",
            "query learned; key and value are the layer input",
            "softmax(s (x Wq) xₕᵀ) xₕ",
            "x",
        ),
    ],
)
def test_examples(label: str, words: str, equation: str, cached: str) -> None:
    variant = parse_variant(label)
    assert set(describe(variant).split("; ")) == set(words.split("; "))
    assert write_equation(variant) == equation
    assert name_cached(variant) == cached


def test_no_two_entries_of_the_table_mean_the_same() -> None:
    meanings = {describe(named.variant) for named in VARIANTS}
    assert len(meanings) == len(VARIANTS)


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
