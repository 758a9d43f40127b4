"""Tests whether training without a query projection is more stable at high learning rates."""

from qkvary.papers.ours.why_studies import Size, across, in_sizes, why_setting, why_study
from qkvary.studies.study import Study

LEARNED, IDENTITY = "QKV@rotary", "I-K-V@rotary"
DECAYS = {"0.1": 0.1, "2^-5": 2.0**-5}
FACTORS = (4.0, 16.0)
"""Learning rates, as multiples of the usual learning rate."""


def _study(size: Size) -> Study:
    labels = (LEARNED, IDENTITY)
    rates = tuple(factor * size.learning_rate for factor in FACTORS)

    def name(rate: float, decay: str) -> str:
        return f"learning rate {rate:g}, weight decay {decay}"

    return why_study(
        "why-stability",
        size,
        question="Is training without a query projection more stable?",
        description=(
            "Paper 3 ([Key,Value] is probably all you need) trains identity queries with the "
            "smaller weight decay 2^-5 without divergence, and takes this as a sign of stability. "
            "Here learned queries (QKV) and the layer input as query (I-K-V) are both trained with "
            "weight decays of 0.1 and 2^-5, at 4 and 16 times the usual learning rate. The study "
            "why-weight-decay has the runs at the usual learning rate."
        ),
        settings=tuple(
            why_setting(name(rate, decay), size, learning_rate=rate, weight_decay=DECAYS[decay])
            for rate in rates
            for decay in DECAYS
        ),
        variants=labels,
        contrasts=[
            one for rate in rates for one in across(labels, name(rate, "2^-5"), name(rate, "0.1"))
        ],
        limits=("Gradients are clipped at a norm of 1, which keeps many runs from diverging.",),
    )


PROTOCOLS = in_sizes(_study)
STUDY = PROTOCOLS["small"]
