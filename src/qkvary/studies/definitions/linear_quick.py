"""Linear attention beside the softmax in tasks of ``make study``."""

from qkvary.studies.protocols import quick_characters, quick_sequences
from qkvary.studies.recall import PROJECTIONS
from qkvary.studies.study import Study

STUDY = Study(
    name="linear-quick",
    question="What does linear attention cost, and does sharing cost more or less with it?",
    description=(
        "Linear attention with the features 1 + elu beside the softmax, with every sharing of "
        "projections, in networks of quickstart: the five tasks on 16 digits, where every token "
        "sees all others, and characters, where a token sees the earlier ones. Equal "
        "hyper-parameters for all, which were chosen for the softmax. The bytes of a state are "
        "divided by the 16 or 32 tokens of a sequence, to be compared with a cache."
    ),
    settings=(
        quick_sequences("swap", steps=400, learning_rate=2e-3),
        quick_sequences("sort", steps=600, learning_rate=3e-3),
        quick_sequences("reverse", steps=400, learning_rate=2e-3),
        quick_sequences("sub", steps=400, learning_rate=2e-3),
        quick_sequences("copy", steps=400, learning_rate=2e-3),
        quick_characters(),
    ),
    variants=(*PROJECTIONS, *(f"{label}@linear" for label in PROJECTIONS)),
    seeds=(0, 1, 2, 3),
    contrasts=(
        *((f"{label}@linear", "QKV@linear") for label in PROJECTIONS[1:]),
        *((f"{label}@linear", label) for label in PROJECTIONS[1:]),
    ),
)
