"""A cache of codes: bytes as costs say, and attention over what the codes stand for."""

import dataclasses
import itertools
from typing import get_args

import pytest
import torch
from torch import Tensor

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.blocks import ProjectedAttention
from qkvary.arch.caches import CacheLayout, CacheOptions
from qkvary.costs.cache import layer_cache_bytes
from qkvary.costs.formats import cache_format
from qkvary.nn.cache import LayerCache
from qkvary.nn.cache_quantized import QuantizedStore
from tests.contracts.test_cache_options import STORED
from tests.contracts.variant_cases import (
    BATCH,
    CODED,
    GATE,
    TOKENS,
    distance,
    feed,
    make_layer,
    options_id,
    padding_mask,
    random_input,
    variant_fields,
)
from tests.nn.test_cache_quantized import count_kept_bytes
from tests.pairwise import pairwise
from tests.reference.quantized import decode_rounded

LAYOUTS: tuple[CacheLayout, ...] = get_args(CacheLayout)
LABELS = ["QKV", "Q-K=V", "Q-MQA", "Q-GQA-2@w4", "I-K=V", "Q-K=V@rotary"]
WAYS = [*CODED, CacheOptions(storage="int8", residual=20)]


def expected_bytes(config: AttentionConfig, options: CacheOptions, tokens: int) -> int:
    attention = ProjectedAttention(config=config, storage=STORED[options.layout])
    form = cache_format(options, "float64")
    return layer_cache_bytes(attention, context=tokens, stored_as=form)


@pairwise(
    "label, options, layout",
    itertools.product(LABELS, WAYS, LAYOUTS),
    fields={"label": variant_fields, "options": dataclasses.asdict},
    ids=options_id,
)
def test_bytes_are_those_of_the_formula(
    label: str, options: CacheOptions, layout: CacheLayout
) -> None:
    layer, options = make_layer(label), dataclasses.replace(options, layout=layout)
    cache = LayerCache(layer.config, TOKENS, options)
    x = random_input(71)
    for count, (start, stop) in enumerate(itertools.pairwise([0, 4, 5, TOKENS])):
        feed(layer, x[:, start:stop], [0, stop - start], cache)
        kept = 0
        for store in cache._stores.values():
            assert isinstance(store, QuantizedStore)
            kept += count_kept_bytes(store)
        assert kept == BATCH * expected_bytes(layer.config, options, stop), count
    if "@w" not in label:
        # Memory for the codes of all tokens was taken beforehand; now all of it is used.
        assert cache.nbytes == BATCH * expected_bytes(layer.config, options, TOKENS)
    assert cache.nbytes >= kept


@pairwise(
    "label, options",
    itertools.product(["QKV", "Q-K=V", "Q-K=V@rotary", "Q-GQA-2@w4", "QKV@rotary"], WAYS),
    fields={"label": variant_fields, "options": dataclasses.asdict},
    ids=options_id,
)
def test_attention_reads_what_the_codes_stand_for(label: str, options: CacheOptions) -> None:
    """Storage apart from arithmetic: plain loops that round and then attend, in 64 bits."""
    layer, x = make_layer(label), random_input(71)
    cache = LayerCache(layer.config, options=options)
    found = feed(layer, x, list(range(TOKENS + 1)), cache)
    expected = decode_rounded(layer.config, dict(layer.named_parameters()), x, options)
    assert distance(found, expected.detach()) < GATE
    if options.residual < TOKENS:
        with torch.no_grad():
            assert distance(found, layer(x)) > 1e-6


@pytest.mark.parametrize("options", WAYS, ids=options_id)
def test_padding_on_the_left_is_never_seen(options: CacheOptions) -> None:
    layer, x = make_layer("Q-K=V@rotary"), random_input(71)
    real = padding_mask()[..., None]
    outputs: list[Tensor] = []
    for content in (x, torch.where(real, x, x * -0.5 + 0.1)):
        cache = LayerCache(layer.config, TOKENS, options)
        mask = {"attention_mask": padding_mask()}
        outputs.append(feed(layer, content, list(range(TOKENS + 1)), cache, **mask))
    # Also where two tokens of padding share a block of three, and its scales, with a real one.
    assert torch.equal(outputs[0] * real, outputs[1] * real)
