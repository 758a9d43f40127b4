"""Whether a query that is the layer input wants another weight decay."""

import math
from collections.abc import Mapping
from dataclasses import replace

from qkvary.studies.study import CrossSettingContrast, Study
from qkvary.studies.why_studies import (
    SEEDS,
    SIZES,
    Size,
    across,
    describe_size,
    why_setting,
    with_limits,
)

LEARNED, IDENTITY = "QKV@rotary", "I-K-V@rotary"
FULL, SMALLER, NONE, LARGER = (
    "weight decay 0.1",
    "weight decay 2^-5",
    "no weight decay",
    "weight decay 1",
)
DECAYS: Mapping[str, float] = {FULL: 0.1, SMALLER: 2.0**-5, NONE: 0.0, LARGER: 1.0}
MEAN_RATE = 0.55
"""The mean of a cosine to a tenth, as a share of its peak."""


def _study(size: Size) -> Study:
    labels = (LEARNED, IDENTITY)
    learned = size.steps * MEAN_RATE * size.learning_rate
    study = Study(
        name="why-weight-decay",
        question="Does an identity query need a smaller weight decay than a learned one?",
        description=(
            "Paper 3 trains identity queries with weight decay 2^-5 and its baseline with 0.1. "
            "Here both have 0.1, 2^-5, none, and 1. " + describe_size(size)
        ),
        settings=tuple(
            why_setting(name, size, weight_decay=decay) for name, decay in DECAYS.items()
        ),
        variants=labels,
        baseline=LEARNED,
        contrasts=(
            *(one for name in (SMALLER, NONE, LARGER) for one in across(labels, name, FULL)),
            CrossSettingContrast(
                variant=IDENTITY, setting=SMALLER, reference=LEARNED, reference_setting=FULL
            ),
        ),
        seeds=SEEDS,
    )
    return with_limits(
        study,
        size,
        f"What decay does grows with the sum of the learning rates over the steps: {learned:.2g} "
        "here and about 58 in paper 3, where 0.1 shrinks a weight that no gradient holds 300 "
        f"times. Here 0.1 shrinks it by {1 - math.exp(-0.1 * learned):.0%}, and 1 by "
        f"{1 - math.exp(-learned):.0%}.",
        "The training reads no byte twice: what weight decay does against overfitting is not "
        "asked here.",
    )


STUDY = _study(SIZES["small"])

PROTOCOLS: Mapping[str, Study] = {
    "small": STUDY,
    "large": replace(_study(SIZES["large"]), name="why-weight-decay-large"),
}
