"""Compares linear attention, SOFT and SimA with softmax attention on six small tasks.

The tasks include the three that ``make study`` runs.
"""

from dataclasses import replace

from qkvary.papers.key_value.protocols import quick_characters, quick_sequences
from qkvary.papers.ours.recall import PROJECTIONS
from qkvary.studies.study import Study

CAUSAL = (
    *PROJECTIONS,
    *(f"{label}@linear" for label in PROJECTIONS),
    *(f"{label}@soft" for label in ("QKV", "Q-K=V")),
)
VARIANTS = (*CAUSAL, *(f"{label}@sima" for label in ("QKV", "Q-K=V")))
"""The variants of tasks that are not causal. SimA normalises over all tokens, so it has no causal
form."""
STUDY = Study(
    name="linear-quick",
    question=(
        "What does linear attention cost, and does sharing cost more or less there than with "
        "softmax?"
    ),
    description=(
        "The study compares linear attention, whose feature map is 1 + elu, with softmax "
        "attention for every way of sharing projections, in the networks of quickstart. In the "
        "five tasks on 16 digits, every token attends to all tokens. In the task characters, a "
        "token attends only to earlier tokens. SOFT and SimA, which also avoid the softmax, are "
        "compared too. All variants have equal "
        "hyper-parameters, which were chosen for the softmax. The bytes of a linear-attention "
        "state are divided by the 16 or 32 tokens of a sequence, so that they can be compared "
        "with the bytes of a cache per token."
    ),
    settings=(
        quick_sequences("swap", steps=400, learning_rate=2e-3),
        quick_sequences("sort", steps=600, learning_rate=3e-3),
        quick_sequences("reverse", steps=400, learning_rate=2e-3),
        quick_sequences("sub", steps=400, learning_rate=2e-3),
        quick_sequences("copy", steps=400, learning_rate=2e-3),
        replace(quick_characters(), table="characters", variants=CAUSAL),
    ),
    variants=VARIANTS,
    seeds=(0, 1, 2, 3),
    contrasts=(
        *((f"{label}@linear", "QKV@linear") for label in PROJECTIONS[1:]),
        *((f"{label}@linear", label) for label in PROJECTIONS[1:]),
    ),
)
