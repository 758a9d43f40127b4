"""Words follow from the value; ``tests/contracts`` evaluates the equations."""

import pytest

from qkvary.arch.descriptions import describe
from qkvary.arch.labels import parse_variant
from qkvary.arch.table import VARIANTS
from qkvary.arch.variants import QKV

PHRASES = {
    "QKV": "query, key and value each learned",
    "I-K-V": "query is the layer input",
    "Q-I-I": "key and value are the layer input",
    "Q-K=V": "key and value read one projection",
    "Q=K=V": "query, key and value read one projection",
    "Q-MQA": "one KV head",
    "GQA-2": "2 KV heads",
    "Q-K[d/4]-V": "projection k has rank d/4",
    "(Q=K-V)+": "a bias per key position",
    "Q[map]=K-V": "a linear map for each head",
    "QKV@alibi": "the distance |i-j|",
    "QKV@rotary": "rotated by their positions",
    "QKV@w8": "attention reaches 8 tokens",
    "QKV@w4@s8": "distances that 8 divides",
    "QKV@t2.0": "softmax temperature 2",
    "Q=K-V@diag-mean": "the scores is divided by its mean",
    "Q=K-V@diag-norm-unscaled": "before the score scale",
    "QKV@soft": "Gaussian kernel",
    "QKV@sima": "its l1 norm",
    "QKV@linear": "products of 1 + elu of query and key",
    "QKV@linear@decay-learned": "a learned factor per KV head",
    "QKV@linear@decay-learned@undecayed-sum": "without the decay",
    "QKV@linear-relu@unnormalised": "not divided by their sum",
}
"""A phrase of the words of each label."""


@pytest.mark.parametrize("label", PHRASES)
def test_words_say_what_is_special(label: str) -> None:
    assert PHRASES[label] in describe(parse_variant(label))
    if label != "QKV":
        assert PHRASES[label] not in describe(QKV)


def test_no_two_entries_of_the_table_mean_the_same() -> None:
    meanings = {describe(named.variant) for named in VARIANTS}
    assert len(meanings) == len(VARIANTS)
