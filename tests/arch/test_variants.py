"""Products without meaning are refused in one sentence that names the way out."""

import pytest

from qkvary.arch.sharing import share
from qkvary.arch.variants import QKV, Rank, Variant

QKV_SHARING = share("q", "k", "v")
TIED = share("k", "k", "v")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"sharing": TIED, "query_form": "residual"},
            (
                "expected a query with a projection of its own for the residual form, got a query "
                "that reads k; choices: Q[residual]-K-V, Q[residual]-K=V"
            ),
        ),
        (
            {"sharing": share("x", "k", "v"), "query_form": "residual-gelu"},
            (
                "expected a query with a projection of its own for the residual-gelu form, got a "
                "query that reads x; choices: Q[residual-gelu]-K-V, Q[residual-gelu]-K=V"
            ),
        ),
        (
            {"sharing": QKV_SHARING, "query_form": "map"},
            (
                "expected a query that shares its source for the map form, got a query that reads "
                "q alone, where the map is absorbed; choices: Q[map]=K-V, Q[map]=K=V, Q[map]=V/g"
            ),
        ),
        (
            {"sharing": share("v", "k", "v"), "query_form": "map"},
            (
                "expected a key that cannot absorb the map, got a key with a projection and heads "
                "of its own, where q M k = q (k M'); choices: Q[map]=K-V, Q[map]=V/g, Q=V"
            ),
        ),
        (
            {"sharing": QKV_SHARING, "num_kv_heads": 0},
            "expected at least 1 KV head, got 0",
        ),
        (
            {"sharing": TIED, "num_kv_heads": 2},
            (
                "expected a query of its own with 2 KV heads, got a query that reads the same "
                "projection as a key or value with fewer heads; choices: Q-K=V with heads shared "
                "(Q-GQA-g, Q-MQA), or a map (Q[map]=K-V/g)"
            ),
        ),
        (
            {"sharing": share("v", "k", "v"), "num_kv_heads": 2},
            (
                "expected a query of its own with 2 KV heads, got a query that reads the same "
                "projection as a key or value with fewer heads; choices: Q-K=V with heads shared "
                "(Q-GQA-g, Q-MQA), or a map (Q[map]=K-V/g)"
            ),
        ),
        (
            {"sharing": share("q", "x", "v"), "num_kv_heads": 1},
            (
                "expected a learned key and value with 1 KV heads, got one that reads the layer "
                "input, which has as many heads as the query; choices: I-K-V, I-K=V"
            ),
        ),
        (
            {"sharing": share("q", "x", "v"), "k_rank": Rank(3)},
            "expected a learned key for a key rank, got a key that is the layer input",
        ),
        (
            {"sharing": share("q", "k", "k"), "v_rank": Rank(3)},
            (
                "expected a value with a projection of its own for a value rank, got a value that "
                "reads k; give the rank to that projection instead"
            ),
        ),
        (
            {"sharing": QKV_SHARING, "window": 0},
            "expected a window of at least 1 token, got 0",
        ),
        (
            {"sharing": QKV_SHARING, "stride": 1},
            (
                "expected a stride of at least 2 tokens, got 1; without a stride every distance is "
                "seen"
            ),
        ),
        (
            {"sharing": TIED, "core": "soft", "plus": True, "diagonal": "mean"},
            (
                "expected no plus or diagonal with the core soft, where they have no meaning; "
                "choices: positions, window, stride or temperature"
            ),
        ),
        (
            {"sharing": TIED, "core": "sima", "temperature": 0.5},
            (
                "expected no temperature with the core sima, where it has no meaning; choices: no "
                "score term"
            ),
        ),
        (
            {"sharing": TIED, "core": "linear", "plus": True, "diagonal": "mean", "window": 4},
            (
                "expected no plus, window or diagonal with the core linear, where they have no "
                "meaning; choices: decay or normaliser"
            ),
        ),
        (
            {"sharing": QKV_SHARING, "core": "linear-relu", "temperature": 0.5, "decoupled": 4},
            (
                "expected no decoupled or temperature with the core linear-relu, where they have "
                "no meaning; choices: decay or normaliser"
            ),
        ),
        (
            {"sharing": QKV_SHARING, "core": "linear", "positions": "alibi"},
            (
                "expected no positions with the core linear, where it has no meaning; choices: "
                "decay or normaliser"
            ),
        ),
        (
            {"sharing": QKV_SHARING, "core": "linear-identity", "normaliser": "unnormalised"},
            (
                "expected no normaliser with the core linear-identity, where it has no meaning; "
                "choices: decay"
            ),
        ),
        (
            {"sharing": QKV_SHARING, "decay": "learned"},
            (
                "expected no decay with the core softmax, where it has no meaning; choices: plus, "
                "key_bias, positions, decoupled, window, stride, diagonal or temperature"
            ),
        ),
        (
            {"sharing": QKV_SHARING, "core": "linear", "normaliser": "undecayed-sum"},
            (
                "expected a decay for an undecayed sum, got none, where both sums are one; "
                "choices: decay-learned, decay-fixed"
            ),
        ),
        (
            {"sharing": share("q", "k", "k"), "core": "linear", "latent": 4},
            (
                "expected no latent with the core linear, got 4 channels: they are for a cache of "
                "tokens, and this core keeps a state"
            ),
        ),
        (
            {"sharing": QKV_SHARING, "temperature": 0.0},
            "expected a positive temperature, got 0.0",
        ),
        (
            {"sharing": QKV_SHARING, "temperature": float("nan")},
            "expected a positive temperature, got nan",
        ),
        (
            {"sharing": QKV_SHARING, "temperature": float("inf")},
            "expected a positive temperature, got inf",
        ),
        (
            {"sharing": QKV_SHARING, "diagonal": "mean"},
            (
                "expected query and key to be one tensor for diagonal normalisation (the diagonal "
                "of K K^T is a squared norm), got q,k,v; choices: Q=K-V, Q=K=V"
            ),
        ),
        (
            {"sharing": TIED, "query_form": "map", "diagonal": "norm"},
            (
                "expected query and key to be one tensor for diagonal normalisation (the diagonal "
                "of K K^T is a squared norm), got q=k,v; choices: Q=K-V, Q=K=V"
            ),
        ),
    ],
)
def test_a_product_without_meaning_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        Variant(**fields)  # type: ignore[arg-type]
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "fields",
    [
        {"sharing": TIED, "num_kv_heads": 2, "query_form": "map"},
        {"sharing": share("x", "k", "v"), "num_kv_heads": 1},
        {"sharing": share("x", "x", "v"), "query_form": "map"},
        {"sharing": TIED, "diagonal": "mean", "plus": True},
        {"sharing": share("k", "k", "k"), "k_rank": Rank(2)},
        {"sharing": QKV_SHARING, "core": "soft", "positions": "rotary", "stride": 2},
    ],
)
def test_a_product_with_meaning_is_accepted(fields: dict[str, object]) -> None:
    assert Variant(**fields) != QKV  # type: ignore[arg-type]


def test_heads_must_divide() -> None:
    variant = Variant(sharing=QKV_SHARING, num_kv_heads=4)
    assert variant.kv_heads(12) == 4
    assert QKV.kv_heads(12) == 12
    with pytest.raises(ValueError, match="divide 6 query heads, got 4; choices: 1, 2, 3, 6"):
        variant.kv_heads(6)


def test_ranks() -> None:
    assert Rank(3).resolve(7) == 3
    assert Rank(4, of_width=True).resolve(20) == 5
    assert (str(Rank(3)), str(Rank(4, of_width=True))) == ("r3", "d/4")
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
    # The published decays of the query-identity paper.
    assert 0.1 * 0.3125 == 2**-5
