"""Stores networks during training, to see when keys and values become alike."""

from dataclasses import replace

from qkvary.papers.ours.why_studies import Size, in_sizes, why_setting, why_study
from qkvary.studies.study import Study

APART, SHARED = "QKV@alibi", "Q-K=V@alibi"
LAYERS = 4
LONGER = 2
"""Number of steps, as a multiple of the steps in ``SIZES``."""
PARTS = (0.0, 0.05, 0.1, 0.25, 0.5)
"""Fractions of training at which networks are stored; the final networks are stored too."""


def _study(size: Size) -> Study:
    longer = replace(size, steps=LONGER * size.steps, num_layers=LAYERS)
    setting = replace(
        why_setting("novels", longer),
        keep_networks=True,
        keep_steps=tuple(round(part * longer.steps) for part in PARTS),
    )
    return why_study(
        "likeness-over-training",
        longer,
        question="Are keys and values alike because training makes them so, or from the start?",
        description=(
            "This study trains and stores networks at several points of their training. The script "
            "`studies/ours/likeness-over-training/measure.py` then analyzes these networks in the "
            "same way as `qkvary analyze`, and ties their keys and values."
        ),
        positions="linear biases (ALiBi), which do not change keys",
        settings=(setting,),
        variants=(APART, SHARED),
    )


PROTOCOLS = in_sizes(_study)
STUDY = PROTOCOLS["small"]
