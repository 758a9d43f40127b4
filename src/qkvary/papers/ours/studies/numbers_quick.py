"""A part of paper 2's number experiment that can be trained in minutes."""

from collections.abc import Mapping
from dataclasses import replace

from qkvary.papers.key_value.protocols import NUMBER_VARIANTS, number_grid
from qkvary.studies.study import Study

STUDY = Study(
    name="numbers-quick",
    question="What does sharing cost when a network learns to count, with numbers in words?",
    description=(
        "In the number experiment of paper 2 (Key-Value Transformer), networks learn in two of the "
        "settings, and the study uses these two. They have windows of 16 and 32 words and the "
        "higher learning rate, and train for 735 and 360 steps. "
        "All numbers from 1 to 9,999 are used, and every tenth window is test data. "
        "The study adds Q-K=V, which halves the cache, to the published variants."
    ),
    settings=number_grid("clean", learning_rates=(1e-3,), contexts=(16, 32)),
    variants=(*NUMBER_VARIANTS, "Q-K=V"),
    seeds=(0, 1, 2, 3),
)

PROTOCOLS: Mapping[str, Study] = {
    "clean": STUDY,
    "as-published": replace(
        STUDY,
        name="numbers-quick-as-published",
        description=STUDY.description.replace(
            "All numbers from 1 to 9,999 are used, and every tenth window is test data.",
            "As in the published code, the number 8000 is missing from the data, and the last "
            "fifth of the windows serves as both validation and test data.",
        ),
        settings=number_grid("as-published", learning_rates=(1e-3,), contexts=(16, 32)),
    ),
}
