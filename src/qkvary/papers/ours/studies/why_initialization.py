"""Tests whether shared projections need other initial weights or learning rates."""

from qkvary.papers.ours.why_studies import STD, Size, across, in_sizes, why_setting, why_study
from qkvary.studies.study import Study

LABELS = ("QKV@rotary", "Q-K=V@rotary", "Q=K=V@rotary")
SMALLER, LARGER = 0.02, 0.18
SLOWER, FASTER = 0.25, 4.0


def _study(size: Size) -> Study:
    middle = f"deviation {STD:g}"
    rates = tuple(factor * size.learning_rate for factor in (SLOWER, FASTER))
    others = (
        *(why_setting(f"deviation {std:g}", size, std=std) for std in (SMALLER, LARGER)),
        *(why_setting(f"learning rate {rate:g}", size, learning_rate=rate) for rate in rates),
    )
    return why_study(
        "why-initialization",
        size,
        question="Do shared projections need a special initialization or learning rate?",
        description=(
            "Paper 1 (Do Transformers Need Three Projections?) says that its variants need no "
            "special initialization. In this study, all weights are drawn with standard deviations "
            f"of {SMALLER}, {STD} and {LARGER}. With {STD}, networks are also trained at a quarter "
            "of the usual learning rate and at four times the usual learning rate. If sharing "
            "needed a special initialization or learning rate, the cost of sharing would depend on "
            "these choices."
        ),
        settings=(why_setting(middle, size), *others),
        variants=LABELS,
        contrasts=[pair for one in others for pair in across(LABELS, one.name, middle)],
        limits=(
            (
                "The standard deviation is that of all weights, embeddings included, so it "
                "also sets the initial size of the residual stream; the two effects are not "
                "separated."
            ),
        ),
    )


PROTOCOLS = in_sizes(_study)
STUDY = PROTOCOLS["small"]
