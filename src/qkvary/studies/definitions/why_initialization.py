"""Whether shared projections want other initial weights or another learning rate."""

from collections.abc import Mapping
from dataclasses import replace

from qkvary.studies.study import Study
from qkvary.studies.why_studies import (
    SEEDS,
    SIZES,
    STD,
    Size,
    across,
    describe_size,
    why_setting,
    with_limits,
)

LABELS = ("QKV@rotary", "Q-K=V@rotary", "Q=K=V@rotary")
SMALLER, LARGER = 0.02, 0.18
SLOWER, FASTER = 0.25, 4.0


def _study(size: Size) -> Study:
    middle = f"deviation {STD:g}"
    settings = (
        why_setting(middle, size),
        *(why_setting(f"deviation {std:g}", size, std=std) for std in (SMALLER, LARGER)),
        *(
            why_setting(
                f"learning rate {factor * size.learning_rate:g}",
                size,
                learning_rate=factor * size.learning_rate,
            )
            for factor in (SLOWER, FASTER)
        ),
    )
    study = Study(
        name="why-initialization",
        question="Do shared projections need a special initialization or learning rate?",
        description=(
            "Paper 1 says that its variants need no special initialization. Here all weights are "
            f"drawn with deviations of {SMALLER:g}, {STD:g} and {LARGER:g}, and with {STD:g} the "
            "learning rate is also a quarter and four times as large. If sharing asked for "
            "something special, its cost would depend on them. " + describe_size(size)
        ),
        settings=settings,
        variants=LABELS,
        baseline=LABELS[0],
        contrasts=tuple(
            contrast for one in settings[1:] for contrast in across(LABELS, one.name, middle)
        ),
        seeds=SEEDS,
    )
    return with_limits(
        study,
        size,
        "The deviation is that of all weights, embeddings included, so that it also sets how "
        "large the residual stream begins; which of them matters is not asked.",
    )


STUDY = _study(SIZES["small"])

PROTOCOLS: Mapping[str, Study] = {
    "small": STUDY,
    "large": replace(_study(SIZES["large"]), name="why-initialization-large"),
}
