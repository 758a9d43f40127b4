"""Which projection can attention do without? Every sharing of two, and every identity."""

from qkvary.papers.key_value.protocols import quick_characters
from qkvary.studies.study import Study

STUDY = Study(
    name="projections-quick",
    question="Which of the three projections does a small language model need least?",
    description=(
        "Compared are every pair of roles that reads one projection (Q=K-V, Q-K=V, Q=V), every "
        "role that reads the layer input instead of a projection (I-K-V, Q-I-V, Q-K-I), one "
        "projection for all, and positions in the scores of a shared query and key. All train "
        "on the characters of quickstart: two layers, 300 steps, equal hyper-parameters."
    ),
    settings=(quick_characters(),),
    variants=("QKV", "Q=K-V", "(Q=K-V)+", "Q-K=V", "Q=V", "Q=K=V", "I-K-V", "Q-I-V", "Q-K-I"),
    seeds=(0, 1, 2, 3),
    contrasts=(
        ("Q-K=V", "Q=K-V"),
        ("Q-K=V", "Q=V"),
        ("Q-K=V", "Q=K=V"),
        ("(Q=K-V)+", "Q=K-V"),
        ("Q-K-I", "I-K-V"),
        ("Q-K-I", "Q-I-V"),
    ),
)
