"""Measures what networks lose without the skips around attention and feed-forward networks."""

from collections.abc import Mapping

from qkvary.arch.networks import Norm, Skips
from qkvary.papers.ours.why_studies import Size, across, in_sizes, why_setting, why_study
from qkvary.studies.study import Study

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
    order = (THEOREM, *(name for name in BLOCKS if name not in {BOTH, THEOREM}))
    return why_study(
        "why-skips",
        size,
        question="What do networks lose without the skips that the theorems of paper 3 leave out?",
        description=(
            "Theorem 4.2 of paper 3 ([Key,Value] is probably all you need) removes every query "
            "matrix from a network without norms whose feed-forward networks have no skip. Such "
            "networks are trained here, with learned queries (QKV) and with the layer input as "
            "query (I-K-V). By the theorem, both can compute the same functions. For comparison, "
            "networks with norms are trained with both skips, with one of the two skips, and with "
            "none."
        ),
        settings=[
            why_setting(name, size, skips=skips, norm=norm)
            for name, (skips, norm) in BLOCKS.items()
        ],
        variants=labels,
        contrasts=[pair for name in order for pair in across(labels, name, BOTH)],
        limits=(
            (
                "Only the skips are changed: the initial weights and the learning rate were "
                "chosen for networks with both skips."
            ),
        ),
    )


PROTOCOLS = in_sizes(_study)
STUDY = PROTOCOLS["small"]
