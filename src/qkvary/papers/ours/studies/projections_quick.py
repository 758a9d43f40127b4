"""Compares every shared pair of projections, and the layer input in place of each projection."""

from qkvary.papers.key_value.protocols import quick_characters
from qkvary.studies.study import Study

STUDY = Study(
    name="projections-quick",
    question="Which of the three projections does a small language model need least?",
    description=(
        "The study compares separate projections of query, key and value (QKV) with other "
        "variants. Two of the three share one projection (Q=K-V, Q-K=V, Q=V), or all three do "
        "(Q=K=V). The layer input replaces one of the projections (I-K-V, Q-I-V, Q-K-I). Or query "
        "and key share a projection and the scores have a position term ((Q=K-V)+). All variants "
        "train on the characters of the study quickstart, with two layers, 300 steps and equal "
        "hyper-parameters."
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
