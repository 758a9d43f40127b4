"""Linear attention beside the softmax in the tasks of ``make study``."""

from dataclasses import replace

from qkvary.studies.protocols import quick_characters, quick_sequences
from qkvary.studies.recall import PROJECTIONS
from qkvary.studies.study import Study

LINEAR, DECAYING = "@linear", "@linear@decay-learned"
SHARED = PROJECTIONS[1:]
"""The sharings of projections."""
HEADS = ("MQA", "Q-MQA")
"""The sharings of all heads."""

_BOTH = (*PROJECTIONS, *(f"{label}{LINEAR}" for label in PROJECTIONS))

STUDY = Study(
    name="linear-quick",
    question="What does linear attention cost, and does sharing cost more or less with it?",
    description=(
        "Linear attention with the features 1 + elu beside the softmax, in the tasks and networks "
        "of quickstart. Swap and sort of 16 digits, where every token sees all others: the "
        "sharings of projections. Characters, where a token sees the earlier ones: the sharings "
        "of all heads too, and a learned decay for QKV and Q=K=V. Equal hyper-parameters for all, "
        "which were chosen for the softmax."
    ),
    settings=(
        replace(
            quick_sequences("swap", steps=400, learning_rate=2e-3), table="swap", variants=_BOTH
        ),
        replace(
            quick_sequences("sort", steps=600, learning_rate=3e-3), table="sort", variants=_BOTH
        ),
        quick_characters(),
    ),
    variants=(
        *_BOTH,
        *HEADS,
        *(f"{label}{LINEAR}" for label in HEADS),
        f"QKV{DECAYING}",
        f"Q=K=V{DECAYING}",
    ),
    seeds=(0, 1, 2, 3, 4),
    contrasts=(
        *((f"{label}{LINEAR}", f"QKV{LINEAR}") for label in SHARED),
        *((f"{label}{LINEAR}", label) for label in SHARED),
        (f"QKV{DECAYING}", f"QKV{LINEAR}"),
    ),
)
