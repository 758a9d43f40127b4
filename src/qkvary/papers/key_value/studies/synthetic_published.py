"""Trains networks on the synthetic tasks, in the configurations of the published results.

The published results are averages over these configurations.
"""

from dataclasses import replace

from qkvary.papers.key_value.protocols import SYNTHETIC_VARIANTS, synthetic_grid
from qkvary.papers.recomputation import published_tables
from qkvary.studies.study import Study

STUDY = Study(
    name="synthetic-published",
    question="Are the published averages over the synthetic tasks reproduced?",
    description=(
        "The study has the 16 configurations in the plotting notebook of paper 2 (Key-Value "
        "Transformer): widths 64 and 256, 2 or 4 layers, 2 or 4 heads, and lengths 64 and 128. "
        "(For reverse and sort, the notebook has three more configurations of unknown sizes.) Each "
        "configuration is trained for two epochs of 50,000 sequences in three runs. All variants "
        "have equal hyper-parameters. Projections are initialized as published."
    ),
    settings=synthetic_grid(widths=(64, 256), lengths=(64, 128)),
    variants=SYNTHETIC_VARIANTS,
    seeds=(0, 1, 2),
    published=published_tables(
        "three-projections-table-2", "key-value-table-2", "key-value-notebook-synthetic"
    ),
)
HARDER = (
    "The published averages are taken over 16 or 19 configurations, of which this study has only "
    "four. The others have lengths of 128 or widths of 256, and two epochs are not enough for long "
    "sequences: with 128 digits, width 64, two layers and two heads, one run of QKV scores 0.110 "
    "on reverse and 0.106 on swap, while guessing scores 0.1. The scores here are above the "
    "published ones, most likely because such hard configurations are missing."
)
"""The score on reverse in this text is that of a run with the options ``--setting
reverse-d64-L2-H2-n128 --variant QKV --seeds 0``. The run for swap has the same options."""
PROTOCOLS = {
    "as-published": STUDY,
    "part": replace(
        STUDY,
        name="synthetic-published-part",
        description=(
            "The study trains on reverse and swap, on which variants differ, at width 64 and "
            "length 64. These are four of the 16 configurations in the plotting notebook of paper "
            "2. Each configuration is trained for two epochs of 50,000 sequences in three runs. "
            "All variants have equal hyper-parameters. Projections are initialized as published."
        ),
        settings=tuple(
            replace(setting, limits=(*setting.limits, HARDER))
            for setting in synthetic_grid(widths=(64,), lengths=(64,))
            if setting.task.name in {"reverse", "swap"}
        ),
    ),
}
