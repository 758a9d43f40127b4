"""Tests low-rank keys and values, and the layer from the overview article's code."""

from dataclasses import replace

from qkvary.papers.key_value.protocols import quick_characters
from qkvary.studies.study import Study

FACTORED = (
    "In these networks, a quarter of the layer's width is the size of a head. The only key head of "
    "the article's layer, Q-K[d/4]-V/1, therefore has full rank: its projection is merely the "
    "product of two factors."
)

STUDY = Study(
    name="low-rank-quick",
    question="What do low-rank keys and values cost a small language model?",
    description=(
        "The key projection, the value projection or both have a rank of a quarter of the "
        "layer's width; a low-rank projection is the product of two factors. The layer from the "
        "overview article's code, which has a low-rank key projection and one KV head, is "
        "compared too. All variants train on the characters of quickstart, with two layers of "
        "four heads, 300 steps and equal hyper-parameters. A layer in which both projections have "
        "a low rank has as many parameters as a layer with GQA-2. The product of the two factors "
        "is initialized with the standard deviation of a full matrix."
    ),
    settings=(replace(quick_characters(), limits=(FACTORED,)),),
    variants=(
        "QKV",
        "Q-K[d/4]-V",
        "Q-K-V[d/4]",
        "Q-K[d/4]-V[d/4]",
        "Q-K[d/4]-V/1",
        "GQA-2",
        "MQA",
    ),
    seeds=(0, 1, 2, 3),
    contrasts=(
        ("Q-K[d/4]-V", "Q-K-V[d/4]"),
        ("Q-K[d/4]-V[d/4]", "GQA-2"),
        ("Q-K[d/4]-V/1", "MQA"),
    ),
)
