"""Compares the published variants and a new one in minutes; ``make study`` runs this study."""

from qkvary.papers.key_value.protocols import SYNTHETIC_VARIANTS, quick_characters, quick_sequences
from qkvary.papers.recomputation import published_tables
from qkvary.studies.study import Study

STUDY = Study(
    name="quickstart",
    question=(
        "What does sharing the query, key and value projections cost, and is the symmetry of a "
        "shared query and key the reason?"
    ),
    description=(
        "The study compares all variants that have a published result, and I-K=V, which has as "
        "many parameters and as large a cache as Q=K=V but not the symmetry of Q=K=V. The networks "
        "learn swap of 16 digits in 400 steps, sort of 16 digits in 600 steps, and the generation "
        "of tiny Shakespeare's characters in 300 steps. They have two layers and four heads. The "
        "numbers of steps are chosen so that, at the end, some variants have solved a task and "
        "others have not. All variants have equal hyper-parameters, equal data and equal initial "
        "standard deviations of projections. The networks are smaller than the papers' networks. A "
        "comparison with the published numbers therefore shows whether the order of the variants "
        "is the same, not whether the values are the same."
    ),
    settings=(
        quick_sequences("swap", steps=400, learning_rate=2e-3),
        quick_sequences("sort", steps=600, learning_rate=3e-3),
        quick_characters(),
    ),
    variants=(*SYNTHETIC_VARIANTS, "GQA-2", "MQA", "Q-GQA-2", "Q-MQA", "I-K-V", "I-K=V"),
    seeds=(0, 1, 2, 3, 4, 5, 6, 7),
    published=published_tables("three-projections-table-2"),
    contrasts=(("I-K=V", "Q=K=V"), ("(Q=K=V)+", "Q=K=V"), ("Q-K=V", "Q=K-V")),
)
