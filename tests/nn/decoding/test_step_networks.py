"""A step as one call gives what the network gives: one table of the networks that it takes."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from qkvary.arch.caches import CacheLayout
from qkvary.arch.networks import BlockConfig
from tests.nn.decoding.test_step import FLOAT32, NEW, PROMPT, compare, make

LAYOUTS: tuple[CacheLayout, ...] = ("sources", "rotated", "split")

PLAIN = [
    "QKV",
    "Q-K=V",
    "Q=K-V",
    "Q=K=V",
    "Q=V-K",
    "I-K-V",
    "I-K=V",
    "Q-I-V",
    "Q[residual]-K-V",
    "Q[residual-gelu]-K=V",
    "Q-K[d/4]-V[r3]",
    "Q-GQA-2",
    "GQA-2",
    "MQA",
    "Q-MQA",
    "QKV@t0.5",
    "QKV@qk-norm",
    "Q=K-V@qk-norm-wide",
    "GQA-2@qk-norm-wide",
]
DECOUPLED = [
    "Q-K=V@decoupled-4@kv-norm",
    "Q-MQA@decoupled-6@kv-norm",
    "Q=K=V@decoupled-4@kv-norm@t0.5",
    "I-K=V/2@decoupled-2@kv-norm",
    "Q[residual-gelu]-K=V/2@decoupled-18",
    "QKV@decoupled-4",
]
LATENT = [
    "Q-K=V@decoupled-4@latent-9@kv-norm",
    "Q-GQA-2@decoupled-6@latent-70@kv-norm",
    "Q-MQA@latent-150",
    "Q[residual-gelu]-K=V/2@decoupled-18@latent-16",
]
"""Latents that are wider and narrower than a vector, a head and the layer."""
LINEAR = [
    "QKV",
    "Q-K=V",
    "Q=K=V",
    "I-K-V",
    "Q-K[d/4]-V",
    "Q[residual-gelu]-K-V",
    "QKV@qk-norm",
    "Q-K=V@kv-norm",
    "GQA-2@qk-norm-wide",
    "Q-MQA",
]
MAPS = ("linear", "linear-relu", "linear-softmax")
DECAYS = ("", "@decay-learned", "@decay-fixed@undecayed-sum", "@decay-learned@unnormalised")
MAPS_AND_DECAYS = [
    *("".join(pair) for pair in itertools.product(MAPS, DECAYS)),
    # A sum of products of any sign is never divided by.
    "linear-identity",
    "linear-identity@decay-learned",
]
HEADS = [("MQA", 1, 7), ("MQA", 3, 16), ("MQA", 11, 40), ("GQA-2", 14, 33), ("QKV", 2, 150)]
"""Label, heads and channels of a head: four queries at a time, two and one; whole vectors, and
what is left of a row."""
ALONE: list[tuple[str, dict[str, Any]]] = [
    # Blocks.
    ("QKV", {"block": BlockConfig(d_ff=31, activation="relu", norm="rmsnorm")}),
    ("QKV", {"block": BlockConfig(d_ff=31, activation="swiglu", norm="rmsnorm"), "bias": False}),
    ("QKV", {"block": BlockConfig(d_ff=64, activation="gelu", norm_placement="post")}),
    ("QKV", {"block": BlockConfig(d_ff=33, activation="swiglu", norm_placement="post-final")}),
    ("QKV", {"block": BlockConfig(d_ff=33, norm_placement="pre-only", bias=False), "bias": False}),
    # Embeddings and heads.
    ("Q-K=V", {"positions": "sinusoidal", "tied_head": True}),
    ("Q-K=V", {"positions": "sinusoidal-halves"}),
    ("Q-K=V", {"positions": "none", "head_bias": True, "tied_head": False}),
    ("Q-K=V", {"scale_embedding": True}),
    *(
        (f"{label}@linear@decay-fixed", {"num_heads": heads, "d_model": heads * size})
        for label, heads, size in HEADS
    ),
]
"""Networks with fields of their own."""


def cases(
    labels: Sequence[str], *layouts: CacheLayout, rows: Sequence[int] = (1,), **fields: Any
) -> list[Any]:
    """One case for each label, layout and number of rows of networks with these fields."""
    return [
        pytest.param(label, layout, count, fields, id=f"{label}, {layout}, rows {count}")
        for label, layout, count in itertools.product(labels, layouts, rows)
    ]


CASES = [
    *cases(PLAIN, *LAYOUTS),
    *cases(DECOUPLED, "rotated", "split", rows=[3], positions="none", d_model=24, rotary_base=50.0),
    *cases(LATENT, "rotated", rows=[1, 3], d_model=24, rotary_base=50.0),
    *cases([f"{one}@linear@decay-learned" for one in LINEAR], "rotated", rows=[2], d_model=24),
    *cases([f"Q-GQA-2@{one}" for one in MAPS_AND_DECAYS], "rotated", rows=[3]),
]
for label, fields in ALONE:
    CASES += cases([label], "sources", rows=[1, 2], **fields)


@pytest.mark.parametrize(("label", "layout", "rows", "fields"), CASES)
def test_a_step_gives_what_the_network_gives(
    label: str, layout: CacheLayout, rows: int, fields: dict[str, Any]
) -> None:
    """Rows after the first begin with padding."""
    mask = torch.ones(rows, PROMPT + NEW, dtype=torch.bool)
    mask[1:, :3] = False
    model = make(label, **fields)
    assert compare(model, layout, rows=rows, mask=mask if rows > 1 else None) < FLOAT32
