import dataclasses
import itertools
from typing import get_args

import torch

from decoding.networks import (
    Sizes,
    cache_formula_bytes,
    make_network,
    mean_step_bytes,
)
from qkvary.arch.caches import CacheLayout, CacheOptions, CacheStorage
from qkvary.arch.models import as_model
from qkvary.costs.cache import cache_bytes_per_token
from qkvary.costs.decoding import decode_step
from qkvary.costs.formats import parse_format
from qkvary.nn.cache import KVCache
from qkvary.nn.language_model import LanguageModel
from tests.pairwise import pairwise

SIZES = Sizes(d_model=24, num_layers=3, num_heads=4, vocabulary=29)
LABELS = ("QKV", "Q-K=V", "MQA", "Q-MQA", "QKV@rotary", "Q-K=V@rotary", "Q-GQA-2@rotary")
TOKENS, BATCH = 13, 2


@pairwise(
    "label, layout, storage",
    itertools.product(LABELS, get_args(CacheLayout), get_args(CacheStorage)),
)
def test_formula_is_what_a_cache_holds(
    label: str, layout: CacheLayout, storage: CacheStorage
) -> None:
    network = dataclasses.replace(make_network(label, SIZES), max_tokens=TOKENS)
    options = CacheOptions(layout=layout, storage=storage, group=3)
    cache = KVCache(network.layers, max_tokens=TOKENS, options=options)
    model = LanguageModel(network).eval()
    with torch.no_grad():
        model(torch.arange(BATCH * TOKENS).view(BATCH, TOKENS) % 29, cache=cache)
    formula = cache_formula_bytes(network, options, tokens=TOKENS, batch=BATCH, dtype="float32")
    assert cache.nbytes == formula


def test_step_reads_weights_and_what_was_stored_so_far() -> None:
    """With one step it is the cost model's; with more, the mean over them."""
    network = dataclasses.replace(make_network("Q-K=V", SIZES), max_tokens=64)
    options, form = CacheOptions(), parse_format("fp32")
    found = [
        mean_step_bytes(network, options, prompt=5, tokens=tokens, batch=2, dtype="float32")
        for tokens in (2, 4)
    ]
    step = decode_step(as_model(network), batch=2, context=6, weights=form, cache=form)
    assert found[0] == step.weight_bytes + step.cache_bytes
    assert found[1] - found[0] == 2 * (cache_bytes_per_token(network) or 0)
