"""Products without meaning are refused in one sentence that names the way out."""

import math

import pytest

from qkvary.arch.sharing import share
from qkvary.arch.variants import QKV, Rank, Variant

QKV_SHARING = share("q", "k", "v")
TIED = share("k", "k", "v")
Q_K = share("q", "k", "k")
IDENTITY_KEY = share("q", "x", "v")
QUERY_IS_VALUE = share("v", "k", "v")


BOTH = {"sharing": TIED, "plus": True, "diagonal": "mean"}
RELU = {"sharing": QKV_SHARING, "core": "linear-relu"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sharing": TIED, "query_form": "residual"}, "made from k; choices: Q[residual]-K-V"),
        ({"sharing": QKV_SHARING, "query_form": "map"}, "a query made from q, which only"),
        ({"sharing": QUERY_IS_VALUE, "query_form": "map"}, "a key with a shared projection"),
        ({"sharing": QKV_SHARING, "num_kv_heads": 0}, "at least 1 KV head, got 0"),
        ({"sharing": TIED, "num_kv_heads": 2}, "fewer heads than the query (KV heads: 2)"),
        ({"sharing": IDENTITY_KEY, "num_kv_heads": 1}, "the number of KV heads is set (to 1)"),
        (
            {"sharing": IDENTITY_KEY, "k_rank": Rank(3)},
            "a learned key for a k_rank, got the layer input",
        ),
        ({"sharing": Q_K, "v_rank": Rank(3)}, "got a value made from k"),
        ({"sharing": QKV_SHARING, "window": 0}, "a window of at least 1 token, got 0"),
        ({"sharing": QKV_SHARING, "stride": 1}, "a stride of at least 2 tokens, got 1"),
        ({"core": "soft", **BOTH}, "no plus or diagonal with the core soft"),
        ({"sharing": TIED, "core": "sima", "temperature": 0.5}, "no temperature with the core sim"),
        ({"core": "linear", **BOTH, "window": 4}, "no plus, window or diagonal with the core line"),
        ({**RELU, "temperature": 0.5, "decoupled": 4}, "no decoupled or temperature with the core"),
        ({"sharing": QKV_SHARING, "decay": "learned"}, "no decay with the core softmax"),
        ({**RELU, "normaliser": "undecayed-sum"}, "a decay with undecayed-sum, got none"),
        ({"sharing": Q_K, "core": "linear", "latent": 4}, "no tokens, got a latent of 4"),
        *(
            ({"sharing": QKV_SHARING, "temperature": one}, f"a positive temperature, got {one}")
            for one in (0.0, math.nan, math.inf)
        ),
        ({"sharing": QKV_SHARING, "diagonal": "mean"}, "got q,k,v; choices: Q=K-V, Q=K=V"),
    ],
)
def test_a_product_without_meaning_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=r"^expected ") as caught:
        Variant(**fields)  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_ranks() -> None:
    assert Rank(3).resolve(7) == 3
    assert Rank(4, of_width=True).resolve(20) == 5
    with pytest.raises(ValueError, match="expected a width divisible by 4 for rank d/4, got 6"):
        Rank(4, of_width=True).resolve(6)
    with pytest.raises(ValueError, match=r"expected a rank of at least 1, .* got 0"):
        Rank(0)
    with pytest.raises(ValueError, match=r"or d/n with n of at least 2, got d/1"):
        Rank(1, of_width=True)


def test_identity_roles_and_their_weight_decay() -> None:
    cases: list[tuple[Variant, tuple[str, ...], float]] = [
        (QKV, (), 1.0),
        (Variant(sharing=share("x", "k", "v")), ("query",), 0.3125),
        (Variant(sharing=QKV_SHARING, query_form="residual"), ("query",), 0.3125),
        (Variant(sharing=share("q", "x", "v")), ("key",), 1.0),
        (Variant(sharing=share("x", "x", "x")), ("query", "key", "value"), 0.3125),
    ]
    for variant, roles, factor in cases:
        assert (variant.identity_roles, variant.weight_decay_factor) == (roles, factor)
