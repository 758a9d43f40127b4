"""Trains networks on the synthetic tasks as described in the papers."""

from qkvary.papers.key_value.protocols import SYNTHETIC_VARIANTS, synthetic_grid
from qkvary.papers.recomputation import published_tables
from qkvary.studies.study import Study

STUDY = Study(
    name="synthetic-paper",
    question="Which variants learn the five synthetic tasks in the papers' 36 configurations?",
    description=(
        "The study has the 36 configurations that the text of papers 1 (Do Transformers Need Three "
        "Projections?) and 2 (Key-Value Transformer) names: widths 32, 64 and 256, 2 or 4 layers, "
        "2 or 4 heads, and lengths 16, 64 and 128. Each configuration is trained for two epochs of "
        "50,000 sequences in three runs. The published averages of the variants with public code "
        "are over other configurations: 16, which the study synthetic-published has, and in two "
        "tasks three more of unknown sizes. All variants have equal hyper-parameters. "
        "Projections are initialized as published, so variants with fewer projections start with "
        "larger weights."
    ),
    settings=synthetic_grid(widths=(32, 64, 256), lengths=(16, 64, 128)),
    variants=SYNTHETIC_VARIANTS,
    seeds=(0, 1, 2),
    published=published_tables("three-projections-table-2", "key-value-table-2"),
)
