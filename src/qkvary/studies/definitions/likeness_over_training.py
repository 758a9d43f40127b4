"""Networks kept while they are trained: are keys and values alike from the start?"""

from collections.abc import Mapping
from dataclasses import replace

from qkvary.studies.study import Study
from qkvary.studies.why_studies import SEEDS, SIZES, Size, describe_size, why_setting, with_limits

APART, SHARED = "QKV@alibi", "Q-K=V@alibi"
LAYERS = 4
LONGER = 2
"""Steps, as a multiple of those of the size."""
PARTS = (0.0, 0.05, 0.1, 0.25, 0.5)
"""The shares of the training after which networks are kept, beside its end."""


def _study(size: Size) -> Study:
    longer = replace(size, steps=LONGER * size.steps, num_layers=LAYERS)
    setting = replace(
        why_setting("novels", longer),
        keep_networks=True,
        keep_steps=tuple(round(part * longer.steps) for part in PARTS),
    )
    study = Study(
        name="likeness-over-training",
        question="Are keys and values alike because training makes them so, or from the start?",
        description=(
            "The networks of `studies/likeness-over-training/measure.py`, which analyzes them as "
            "`qkvary analyze` does, and ties their keys and values. "
            + describe_size(longer, positions="linear biases (ALiBi), which leave keys as they are")
        ),
        settings=(setting,),
        variants=(APART, SHARED),
        baseline=APART,
        seeds=SEEDS,
    )
    return with_limits(study, longer)


STUDY = _study(SIZES["small"])

PROTOCOLS: Mapping[str, Study] = {
    "small": STUDY,
    "large": replace(_study(SIZES["large"]), name="likeness-over-training-large"),
}
