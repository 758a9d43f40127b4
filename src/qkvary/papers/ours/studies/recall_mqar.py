"""Associative recall in the published sizes, with every sharing."""

from qkvary.papers.ours.recall import RECALL_VARIANTS, published_recall, with_cores
from qkvary.studies.study import Study

STUDY = Study(
    name="recall-mqar",
    question="Which sharing recalls, and how many bytes of cache does it take?",
    description=(
        "Multi-query associative recall of Arora et al. 2023 (Zoology): a vocabulary of 8,192; 4, "
        "8 and 16 pairs in 64, 128 and 256 tokens; two layers of width 64 to 512. Networks train "
        "for 64 epochs of 100,000 sequences, or until 0.99 of the validation answers are right, at "
        "the best of four learning rates for each variant. They have one head, as published, or "
        "four query heads with four, two or one KV heads. Attention is softmax or linear, and for "
        "QKV and Q-K=V also SOFT. The published blocks have no feed-forward network; ours have one "
        "of twice the width. The grid needs a GPU; without one, run a part of it."
    ),
    settings=published_recall(),
    variants=with_cores(RECALL_VARIANTS),
    seeds=(0, 1, 2),
    learning_rates=(1e-4, 4.64e-4, 2.15e-3, 1e-2),
    contrasts=(("Q-K=V", "Q=K-V"), ("Q-K=V", "GQA-2"), ("Q-GQA-2", "MQA")),
)
