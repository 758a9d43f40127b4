"""Tests whether networks whose query is the layer input need less weight decay."""

import math
from collections.abc import Mapping

from qkvary.papers.ours.why_studies import Size, across, in_sizes, why_setting, why_study
from qkvary.studies.study import CrossSettingContrast, Study

LEARNED, IDENTITY = "QKV@rotary", "I-K-V@rotary"
FULL, SMALLER, NONE, LARGER = (
    "weight decay 0.1",
    "weight decay 2^-5",
    "no weight decay",
    "weight decay 1",
)
DECAYS: Mapping[str, float] = {FULL: 0.1, SMALLER: 2.0**-5, NONE: 0.0, LARGER: 1.0}
MEAN_RATE = 0.55
"""Mean learning rate as a share of the peak, for a cosine schedule that ends at a tenth of it."""


def _study(size: Size) -> Study:
    labels = (LEARNED, IDENTITY)
    learned = size.steps * MEAN_RATE * size.learning_rate
    return why_study(
        "why-weight-decay",
        size,
        question="Does an identity query need a smaller weight decay than a learned one?",
        description=(
            "Paper 3 ([Key,Value] is probably all you need) trains identity queries with weight "
            "decay 2^-5 and its baseline with 0.1. Here identity queries (I-K-V) and the baseline "
            "(QKV) are both trained with weight decays of 0.1, 2^-5, 0 and 1."
        ),
        settings=tuple(
            why_setting(name, size, weight_decay=decay) for name, decay in DECAYS.items()
        ),
        variants=labels,
        contrasts=(
            *(one for name in (SMALLER, NONE, LARGER) for one in across(labels, name, FULL)),
            CrossSettingContrast(IDENTITY, SMALLER, LEARNED, FULL),
        ),
        limits=(
            (
                "The effect of weight decay grows with the sum of the learning rates of all steps. "
                f"This sum is {learned:.2g} here and about 58 in paper 3. Consider a weight that "
                "receives no gradient. In paper 3, a weight decay of 0.1 shrinks it to about 1/300 "
                "of its size. Here, a weight decay of 0.1 shrinks it by "
                f"{1 - math.exp(-0.1 * learned):.0%}, and a weight decay of 1 shrinks it by "
                f"{1 - math.exp(-learned):.0%}."
            ),
            (
                "Training uses no byte twice, so the effect of weight decay on overfitting is not "
                "tested here."
            ),
        ),
    )


PROTOCOLS = in_sizes(_study)
STUDY = PROTOCOLS["small"]
