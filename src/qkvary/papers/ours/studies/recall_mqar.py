"""Trains networks on associative recall at the published sizes, with every way of sharing."""

from qkvary.papers.ours.recall import RECALL_VARIANTS, published_recall, with_cores
from qkvary.studies.study import Study

STUDY = Study(
    name="recall-mqar",
    question=(
        "Which ways of sharing projections and heads still allow recall, and how many bytes of "
        "cache do they need?"
    ),
    description=(
        "The task is multi-query associative recall (Arora et al. 2023, Zoology). The vocabulary "
        "has 8,192 tokens, and sequences have 4, 8 or 16 pairs in 64, 128 or 256 tokens. Networks "
        "have two layers of width 64 to 512. They train for 64 epochs of 100,000 sequences, or "
        "until 99 % of the validation answers are right. Each variant uses the best of four "
        "learning rates. Networks have one head, as published, or four query heads with four, two "
        "or one KV heads. All variants use softmax and linear attention; QKV and Q-K=V also use "
        "SOFT. Unlike the published blocks, our blocks have a feed-forward network, of twice the "
        "width. Run the full grid on a GPU, or only a part of the grid without a GPU."
    ),
    settings=published_recall(),
    variants=with_cores(RECALL_VARIANTS),
    seeds=(0, 1, 2),
    learning_rates=(1e-4, 4.64e-4, 2.15e-3, 1e-2),
    contrasts=(("Q-K=V", "Q=K-V"), ("Q-K=V", "GQA-2"), ("Q-GQA-2", "MQA")),
)
