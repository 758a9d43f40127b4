"""Trains small networks on associative recall in seconds; only some of them learn to recall."""

from qkvary.papers.ours.recall import RECALL_VARIANTS, quick_recall, with_cores
from qkvary.studies.study import CrossSettingContrast, Study

SMALL, LARGE, ONE = "four heads of 8", "four heads of 16", "one head of 64"
LONGER, LATE = "five times the steps", 4_000

_LIMITS = (
    (
        "Recall emerges suddenly in training, and most runs stop after 800 steps. A variant that "
        "recalls nothing by then is slower, but may still learn to recall everything, as the runs "
        "with five times the steps show."
    ),
    (
        "A sequence has 4 pairs in 32 tokens, from 31 possible keys and 32 possible values. In "
        "each setting, all variants have the same learning rate, at which QKV learns. The study "
        "recall-mqar has the published sizes and learning rates."
    ),
    (
        "The state of linear attention does not grow with the text. The bytes of the state are "
        "divided by the 32 tokens of a sequence, so that they can be compared with the bytes of "
        "a cache per token. For longer texts, the state needs proportionally fewer bytes per "
        "token."
    ),
)

STUDY = Study(
    name="recall-quick",
    question=(
        "With which ways of sharing projections and heads does a network learn to recall, and "
        "how many bytes of cache does the network need?"
    ),
    description=(
        "The task is a small multi-query associative recall (Arora et al. 2023, Zoology). A "
        "sequence has 4 pairs of a key and a value; after the pairs, each key occurs once more and "
        "has to be answered with its value. Sequences have 32 tokens, and the vocabulary has 64 "
        "tokens. Networks have two layers and train for at most 800 steps of 32 sequences, or "
        "until 99 % of the validation answers are right. All sharing schemes in the tables of "
        "paper 1 (Do Transformers Need Three Projections?) are trained with four heads, of 8 or of "
        "16 channels each. Schemes that share projections are also trained with one head of 64 "
        "channels, whose cache is as large as that of four heads of 16 channels. All networks are "
        "also trained with linear attention. The state of linear attention is one matrix per head, "
        "so one head of 64 channels has 3.8 times the bytes of four heads of 16 channels (33,280 "
        "against 8,704 in both layers together). QKV and Q-K=V are also trained with SOFT. The "
        "networks of width 64 are trained a second time, for at most 4,000 steps."
    ),
    settings=(
        quick_recall(SMALL, d_model=32, num_heads=4, learning_rate=5e-3, limits=_LIMITS),
        quick_recall(LARGE, d_model=64, num_heads=4, learning_rate=3e-3, limits=_LIMITS),
        quick_recall(ONE, d_model=64, num_heads=1, learning_rate=3e-3, limits=_LIMITS),
        *(
            quick_recall(
                f"{name}, {LONGER}",
                d_model=64,
                num_heads=heads,
                learning_rate=3e-3,
                limits=_LIMITS,
                steps=LATE,
            )
            for name, heads in ((ONE, 1), (LARGE, 4))
        ),
    ),
    variants=with_cores(RECALL_VARIANTS),
    seeds=(0, 1, 2),
    contrasts=(
        ("Q-K=V", "GQA-2"),
        ("Q-GQA-2", "MQA"),
        ("Q-K=V@linear", "QKV@linear"),
        CrossSettingContrast(
            variant="Q-K=V", setting=ONE, reference="Q-K=V", reference_setting=LARGE
        ),
    ),
)
