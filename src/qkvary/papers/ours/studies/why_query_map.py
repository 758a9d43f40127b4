"""Compares queries from a projection, from a map per head, and without either.

Also tests keys without a projection.
"""

from qkvary.papers.ours.why_studies import Size, in_sizes, why_setting, why_study
from qkvary.studies.study import Study

LEARNED, SYMMETRIC = "QKV@rotary", "Q=K-V@rotary"
MAPPED, VALUED = "Q[map]=K-V@rotary", "Q=V@rotary"
INPUT_QUERY, INPUT_KEY = "I-K-V@rotary", "Q-I-V@rotary"


def _by_depth(layers: int) -> tuple[str, str]:
    """Return two labels: with the layer input as key in the first layer, and in the last layer."""
    others = f"{LEARNED}*{layers - 1}"
    return f"{INPUT_KEY}*1,{others}", f"{others},{INPUT_KEY}*1"


def _study(size: Size) -> Study:
    early, late = _by_depth(size.num_layers)
    return why_study(
        "why-query-map",
        size,
        question="Does a query need a full separate projection, or is a map per head enough?",
        description=(
            "The query is the key itself (Q=K-V, symmetric scores), the key multiplied by one map "
            "per head (Q[map]=K-V), or a separate projection (QKV). Further variants use the value "
            "as the query (Q=V), the layer input as the query (I-K-V), or the layer input as the "
            "key (Q-I-V). Q-I-V is used in the first layer only, in the last layer only, or in all "
            "layers."
        ),
        settings=(why_setting("novels", size),),
        variants=(LEARNED, SYMMETRIC, MAPPED, VALUED, INPUT_QUERY, INPUT_KEY, early, late),
        contrasts=(
            (MAPPED, SYMMETRIC),
            (VALUED, SYMMETRIC),
            (INPUT_KEY, INPUT_QUERY),
            (early, late),
        ),
        limits=(
            (
                "A map is a full matrix on a head's channels. A low-rank map added to the "
                "identity, which would be between Q=K-V and Q[map]=K-V, is not tested: heads "
                "have few channels here."
            ),
        ),
    )


PROTOCOLS = in_sizes(_study)
STUDY = PROTOCOLS["small"]
