"""Every product of the grammar that the configuration accepts, for hypothesis."""

from typing import get_args

from hypothesis import strategies as st

from qkvary.arch.sharing import SHARINGS
from qkvary.arch.terms import Core, Decay, DiagonalNorm, HeadNorm, Normaliser
from qkvary.arch.variants import Rank, Variant

RANKS = (
    st.none()
    | st.builds(Rank, st.integers(1, 99))
    | st.builds(Rank, st.integers(2, 16), of_width=st.just(value=True))
)
FIELDS = st.fixed_dictionaries(
    {"sharing": st.sampled_from(SHARINGS)},
    optional={
        "query_form": st.sampled_from(["plain", "residual", "residual-gelu", "map"]),
        "num_kv_heads": st.none() | st.integers(1, 9),
        "k_rank": RANKS,
        "v_rank": RANKS,
        "plus": st.booleans(),
        "key_bias": st.booleans(),
        "positions": st.sampled_from(["none", "relative", "alibi", "rotary"]),
        "decoupled": st.none() | st.integers(1, 9),
        "latent": st.none() | st.integers(1, 99),
        "kv_norm": st.booleans(),
        "head_norm": st.sampled_from(get_args(HeadNorm)),
        "soft_cap": st.none() | st.floats(1e-12, 1e12),
        "window": st.none() | st.integers(1, 4096),
        "stride": st.none() | st.integers(2, 4096),
        "diagonal": st.sampled_from(get_args(DiagonalNorm)),
        "core": st.sampled_from(get_args(Core)),
        "decay": st.sampled_from(get_args(Decay)),
        "normaliser": st.sampled_from(get_args(Normaliser)),
        "temperature": st.floats(1e-12, 1e12) | st.sampled_from([1.0, 0.5, 2.0, 1e-7]),
    },
)


def build_or_none(fields: dict[str, object]) -> Variant | None:
    """The variant, or nothing where the product has no meaning."""
    try:
        return Variant(**fields)  # type: ignore[arg-type]
    except ValueError:
        return None


variants = FIELDS.map(build_or_none).filter(lambda variant: variant is not None)
