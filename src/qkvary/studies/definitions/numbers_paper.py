"""Number generation as in paper 2; its text and its public code have the same settings."""

from dataclasses import replace

from qkvary.studies.protocols import NUMBER_VARIANTS, number_grid
from qkvary.studies.study import Study

_SIZES = (
    "the next word of the numbers from 1 to 9,999 as words, by the text and the code of paper 2: "
    "windows of 16, 32, 64 and 128 words, learning rates 1e-3 and 1e-4, width 64, 4 layers, 8 "
    "heads, 15 epochs of one cycle, five runs. What the text leaves open is that of the code, "
    "which scores every word of a window, where the text's examples have the last one only. The "
    "published runs have no seed."
)
_UNDERTRAINED = (
    "Windows of 64 and 128 words give 12 and 6 updates an epoch, and the learning rate 1e-4 is a "
    "tenth of the other: most of the eight settings measure how far a training of a few hundred "
    "steps gets, not what a network can learn."
)

STUDY = Study(
    name="numbers-paper",
    question="Do the published losses of number generation come out again?",
    description=(
        f"Predict {_SIZES} As published: 8000 is left out, and the last fifth of the windows is "
        "scored, both as validation and as test."
    ),
    settings=tuple(
        replace(
            setting,
            limits=(
                "The scored numbers are all above about 8,000 and those of training below: the "
                "words that begin them follow a number of another thousand in training.",
                "Always answering “thousand” has an accuracy of 0.152, and predicting every word "
                "by its frequency in training a loss of 2.80.",
                _UNDERTRAINED,
            ),
        )
        for setting in number_grid("as-published")
    ),
    variants=NUMBER_VARIANTS,
    seeds=(0, 1, 2, 3, 4),
    published=("key-value-notebook-numbers",),
)
