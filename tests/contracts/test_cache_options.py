"""No layout and no storage of a cache changes a result; what is held is what costs say."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qkvary.arch import blocks
from qkvary.arch.attention import AttentionConfig, Kernel, ValueRope
from qkvary.arch.blocks import ProjectedAttention
from qkvary.arch.caches import CacheLayout, CacheOptions, CacheStorage, DecodeKernel
from qkvary.costs.cache import layer_cache_bytes
from qkvary.nn import kernels
from qkvary.nn.cache import LayerCache
from qkvary.nn.decoding.decode import decode_attention
from tests.conftest import examples
from tests.contracts.variant_cases import (
    BATCH,
    CUTS,
    DECISIVE,
    GATE,
    LABELS,
    TOKENS,
    distance,
    documents,
    feed,
    make_layer,
    padding_mask,
    random_input,
    variant_fields,
    variant_pairs,
)
from tests.pairwise import pairwise

LAYOUTS: tuple[CacheLayout, ...] = ("sources", "rotated", "split", "input", "latent")
STORED: dict[CacheLayout, blocks.Storage] = {
    "sources": "needed",
    "rotated": "needed",
    "split": "both",
    "input": "input",
    "latent": "latent",
}
"""What costs call it, rotated K=V layers apart."""
LOW_RANK = (
    "Q-K[r3]=V@rotary",
    "Q[r3]=K-V[d/4]@alibi",
    "Q-K[r7]-V[r3]/1@rotary@w3",
    *(label for label in LABELS if "[r" in label.replace("[residual", "") or "[d" in label),
)
"""Projections with an inner width; of one head of 5 channels, 7 of them are not narrower."""
CASES = [
    *itertools.product(LABELS, LAYOUTS[:-1]),
    *((label, "latent") for label in ("QKV", "I-K=V", *LOW_RANK)),
]
ROTARY = [label for label in LABELS if "rotary" in label]
STATED = ("Q-K=V@linear", "GQA-2@linear-identity@decay-learned")
LATENT_SOFT = "Q-K=V@latent-7@soft"
"""Distances in a latent are not those of the keys that are made of it."""


def as_stored(config: AttentionConfig, layout: CacheLayout) -> ProjectedAttention:
    """A layer as costs describe it."""
    storage = STORED[layout]
    shared = config.variant.positions == "rotary" and len(config.variant.cached) == 1
    if layout == "rotated" and shared and config.position.value_rope == "none":
        storage = "value and slice"
    return ProjectedAttention(config=config, storage=storage)


def expected_bytes(config: AttentionConfig, layout: CacheLayout) -> int:
    return BATCH * layer_cache_bytes(as_stored(config, layout), context=TOKENS, stored_as="fp64")


@pairwise("label, layout", CASES, fields={"label": variant_fields})
@examples(2)
@given(
    cuts=CUTS,
    storage=st.sampled_from(["growing", "preallocated"]),
    kernel=st.sampled_from(["explicit", "sdpa"]),
    masked=st.booleans(),
)
def test_every_layout_decodes_like_one_forward(
    label: str,
    layout: CacheLayout,
    cuts: list[int],
    storage: CacheStorage,
    kernel: Kernel,
    masked: bool,
) -> None:
    layer, x = make_layer(label, kernel=kernel), random_input(71)
    options = CacheOptions(layout=layout, storage=storage)
    cache = LayerCache(layer.config, TOKENS, options)
    call = {"attention_mask": padding_mask(), "document_ids": documents()} if masked else {}
    real = padding_mask()[..., None] if masked else torch.ones(BATCH, TOKENS, 1)
    found = feed(layer, x, cuts, cache, **call)
    with torch.no_grad():
        assert distance(found * real, layer(x, **call) * real) < GATE
    if storage == "growing":
        assert cache.nbytes == expected_bytes(layer.config, layout)


@pytest.mark.filterwarnings("ignore:value_rope 'rotated'")
@variant_pairs(
    "label, layout, value_rope",
    [*ROTARY, "Q-K[r3]=V@rotary"],
    LAYOUTS,
    ("none", "counter", "rotated"),
)
def test_every_meaning_of_a_rotated_value_in_every_layout(
    label: str, layout: CacheLayout, value_rope: ValueRope
) -> None:
    layer, x = make_layer(label, value_rope=value_rope), random_input(71)
    cache = LayerCache(layer.config, options=CacheOptions(layout=layout))
    found = feed(layer, x, [0, 3, 4, TOKENS], cache)
    with torch.no_grad():
        assert distance(found, layer(x)) < GATE
    assert cache.nbytes == expected_bytes(layer.config, layout)


TIED = [
    *((label, "counter") for label in ("Q-K=V", "Q=K=V", "I-K=V", "Q-GQA-2", "Q-MQA")),
    *itertools.product(
        ("Q-K=V@rotary", "Q-GQA-2@rotary@w3", "Q-MQA@rotary"), ("none", "counter", "rotated")
    ),
]
"""One tensor for both roles with every meaning of heads, and of a value whose key is rotated."""


@pytest.mark.filterwarnings("ignore:value_rope 'rotated'")
@pairwise(
    "label, value_rope, kernel, dtype",
    [
        (*tied, kernel, dtype)
        for tied, kernel, dtype in itertools.product(
            TIED,
            ("explicit", "sdpa"),
            (torch.float64, torch.float32, torch.bfloat16, torch.float16),
        )
    ],
    fields={"label": variant_fields},
    ids=str,
)
def test_one_tensor_gives_the_bits_of_two(
    label: str, value_rope: ValueRope, kernel: Kernel, dtype: torch.dtype
) -> None:
    """K alone against a full cache of the same tied layer: equal, in every number format."""
    layer = make_layer(label, value_rope=value_rope, kernel=kernel).to(dtype)
    x = random_input(71).to(dtype)
    outputs = [
        feed(layer, x, [0, 4, 5, 6, TOKENS], LayerCache(layer.config, TOKENS, options))
        for options in (
            CacheOptions(layout="split"),
            CacheOptions(layout="sources"),
            CacheOptions(layout="rotated"),
            CacheOptions(layout="sources", storage="preallocated"),
        )
    ]
    for output in outputs[1:]:
        assert torch.equal(output, outputs[0])


@variant_pairs(
    "label, layout, kernel",
    [*DECISIVE, "Q-K=V@rotary", "QKV@rotary", "Q-GQA-2@w3", "MQA@w3", *STATED, LATENT_SOFT],
    ["sources", "rotated", "split"],
    ["folded", "native", "auto"],
)
def test_kernels_for_decoding_change_nothing_but_rounding(
    label: str, layout: CacheLayout, kernel: DecodeKernel
) -> None:
    """In float32, which the native kernel knows; padding and several new tokens included."""
    layer, x = make_layer(label).float().eval(), random_input(71).float()
    cache = LayerCache(layer.config, options=CacheOptions(layout=layout, kernel=kernel))
    call = {"attention_mask": padding_mask()}
    real = padding_mask()[..., None]
    found = feed(layer, x, [0, 3, 4, 6, TOKENS], cache, **call)
    with torch.no_grad():
        expected = layer(x, **call)
    assert distance(found * real, expected * real) < 1e-5


def test_kernels_for_decoding_are_asked_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def decode(query: Tensor, *rest: Tensor, **options: object) -> Tensor:
        asked.append(query.shape[2])
        return decode_attention(query, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(kernels, "decode_attention", decode)
    x = random_input(71).float()
    for label, queries in (
        ("Q-K=V", [3, 1]),
        ("Q-K=V@w3", [3, 1]),
        ("(Q-K=V)+", []),
        ("QKV", [3, 1]),
    ):
        layer = make_layer(label).float().eval()
        cache = LayerCache(layer.config, options=CacheOptions(kernel="folded"))
        feed(layer, x, [0, 3, 4], cache)
        assert asked == queries, label
        asked.clear()
        layer(x[:, 4:5], cache=cache)
        assert asked == []
