"""Trains networks on number generation as in paper 2.

The text and the public code of the paper have the same settings.
"""

from collections.abc import Mapping
from dataclasses import replace

from qkvary.papers.key_value.protocols import NUMBER_VARIANTS, number_grid
from qkvary.papers.recomputation import published_tables
from qkvary.studies.study import Study

_GRID = (
    "The task is to predict the next word of numbers that are written out in words. The settings "
    "are windows of 16, 32, 64 and 128 words, learning rates 1e-3 and 1e-4, width 64, 4 layers, 8 "
    "heads, 15 epochs of a one-cycle schedule, and five runs. The text and the code of paper 2 "
    "(Key-Value Transformer) agree on these settings. Where the text leaves a choice open, this "
    "study follows the code. In the code, every word of a window is a target. In the text's "
    "example, only the word after the window is a target. The published runs did not set a seed. "
)

STUDY = Study(
    name="numbers-paper",
    question="Are the published losses of number generation reproduced?",
    description=(
        _GRID + "As in the published code, the number 8000 is missing from the data, and the last "
        "fifth of the windows serves as both validation and test data. The published code scores "
        "a random choice of the batches; this study scores all batches."
    ),
    settings=number_grid("as-published"),
    variants=NUMBER_VARIANTS,
    seeds=(0, 1, 2, 3, 4),
    published=published_tables("key-value-notebook-numbers"),
)

PROTOCOLS: Mapping[str, Study] = {
    "as-published": STUDY,
    "clean": replace(
        STUDY,
        name="numbers-paper-clean",
        question=(
            "Which variants learn to count in words when the scored numbers resemble the training "
            "numbers?"
        ),
        description=(
            _GRID + "In this clean version, all numbers are used. Of every ten windows, the ninth "
            "is validation data and the tenth is test data, so every split has numbers of all "
            "sizes. The published numbers next to ours were measured on the published "
            "split, not on this one."
        ),
        settings=number_grid("clean"),
    ),
}
