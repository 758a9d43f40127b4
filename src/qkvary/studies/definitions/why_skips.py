"""What the skips around attention and around the feed-forward network are worth."""

from collections.abc import Mapping
from dataclasses import replace

from qkvary.arch.networks import Norm, Skips
from qkvary.studies.study import Study
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
BOTH, THEOREM = "both skips", "attention skip alone, no norms"
BLOCKS: Mapping[str, tuple[Skips, Norm]] = {
    BOTH: ("both", "layernorm"),
    "attention skip alone": ("attention", "layernorm"),
    "feed-forward skip alone": ("feed-forward", "layernorm"),
    "no skip": ("none", "layernorm"),
    THEOREM: ("attention", "none"),
}


def _study(size: Size) -> Study:
    labels = (LEARNED, IDENTITY)
    study = Study(
        name="why-skips",
        question="What do networks lose without the skips that the theorems of paper 3 leave out?",
        description=(
            "Theorem 4.2 of paper 3 removes every query matrix from a network without norms "
            "whose feed-forward networks have no skip. Here such networks are trained, each with "
            "learned queries (QKV) and with the layer input as query (I-K-V), which the theorem "
            "says computes the same functions there: with both skips, with each alone, with none, "
            f"and with the attention skip alone and no norms. {describe_size(size)}"
        ),
        settings=tuple(
            why_setting(name, size, skips=skips, norm=norm)
            for name, (skips, norm) in BLOCKS.items()
        ),
        variants=labels,
        baseline=LEARNED,
        contrasts=tuple(
            contrast
            for name in (THEOREM, *(name for name in BLOCKS if name not in {BOTH, THEOREM}))
            for contrast in across(labels, name, BOTH)
        ),
        seeds=SEEDS,
    )
    return with_limits(
        study,
        size,
        "Nothing else changes with the skips: initial weights and learning rate are those that "
        "suit both skips.",
        "Without norms the scores of I-K-V are scaled as behind a norm, where inputs have "
        "deviation 1: here they begin smaller.",
    )


STUDY = _study(SIZES["small"])

PROTOCOLS: Mapping[str, Study] = {
    "small": STUDY,
    "large": replace(_study(SIZES["large"]), name="why-skips-large"),
}
