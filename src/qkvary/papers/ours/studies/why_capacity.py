"""Tests if wide feed-forward networks or a nonlinear query can replace a query projection."""

from qkvary.papers.ours.why_studies import Size, across, in_sizes, why_setting, why_study
from qkvary.studies.study import Study

LEARNED, IDENTITY = "QKV@rotary", "I-K-V@rotary"
LINEAR, NONLINEAR = "Q[residual]-K-V@rotary", "Q[residual-gelu]-K-V@rotary"
USUAL, NARROW, WIDE = "feed-forward x4", "feed-forward x1", "feed-forward x16"
FACTORS = {USUAL: 4, NARROW: 1, WIDE: 16}
"""Inner width of the feed-forward networks, as multiples of the network's width."""


def _study(size: Size) -> Study:
    pair = (LEARNED, IDENTITY)
    return why_study(
        "why-capacity",
        size,
        question=(
            "Does a wide feed-forward network or a nonlinear query make up for a query projection?"
        ),
        description=(
            "Paper 3 ([Key,Value] is probably all you need) suspects that the feed-forward "
            "networks are too small to take over the role of the query, and that a nonlinear query "
            "with a skip, x + gelu(x W), is more expressive than a linear query. In this study, "
            "feed-forward networks have one, four or sixteen times the width of the residual "
            "stream, each with learned queries (QKV) and with the layer input as query (I-K-V). At "
            "four times the width, which is usual, two more variants are trained. Their query is "
            "the layer input plus a projection of it, with and without a GELU. Both have as many "
            "parameters as QKV."
        ),
        settings=(
            why_setting(USUAL, size),
            *(
                why_setting(name, size, variants=pair, d_ff=FACTORS[name] * size.d_model)
                for name in (NARROW, WIDE)
            ),
        ),
        variants=(*pair, LINEAR, NONLINEAR),
        contrasts=(
            (NONLINEAR, LINEAR),
            (NONLINEAR, IDENTITY),
            *(one for name in (NARROW, WIDE) for one in across(pair, name, USUAL)),
        ),
    )


PROTOCOLS = in_sizes(_study)
STUDY = PROTOCOLS["small"]
