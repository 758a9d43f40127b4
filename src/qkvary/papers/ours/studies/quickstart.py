"""The study of ``make study``: the published variants and a new one, in minutes."""

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
        "Every variant with a published result is compared, and I-K=V, which has the parameters "
        "and the cache of Q=K=V without its symmetry. They learn swap and sort of 16 digits in 400 "
        "and 600 steps, and to generate characters of tiny Shakespeare in 300. The networks have "
        "two layers and four heads, and training stops where some variants have solved a task and "
        "others have not. All variants have equal hyper-parameters, equal data and equal initial "
        "standard deviations of projections. These are smaller networks than the papers': "
        "published numbers next to ours show whether the order is the same, not whether the values "
        "are."
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
