"""What a caller may do to a cache between calls, and what a call that failed leaves of it."""

import dataclasses

import pytest
import torch
from torch import Tensor

from qkvary.arch.caches import CacheOptions
from qkvary.nn.attention import Attention
from qkvary.nn.cache import KVCache, LayerCache
from qkvary.nn.language_model import LanguageModel
from tests.contracts.variant_cases import (
    GATE,
    distance,
    make_config,
    make_language_model_config,
    padding_mask,
    random_input,
    randomize,
)

STORAGES = [
    CacheOptions(storage="growing"),
    CacheOptions(storage="preallocated"),
    CacheOptions(storage="int8", residual=99),
]
TOKENS = (torch.arange(2 * 9).view(2, 9) * 5) % 13


def make_model(*labels: str) -> LanguageModel:
    config = make_language_model_config("QKV")
    layers = tuple(make_config(label, causal=True) for label in labels)
    model = LanguageModel(dataclasses.replace(config, attention=layers, num_layers=len(layers)))
    randomize(model.double(), seed=11)
    return model.eval()


def run(model: LanguageModel, tokens: Tensor, cache: KVCache) -> Tensor:
    with torch.no_grad():
        return model(tokens, cache=cache)


@pytest.mark.parametrize("options", STORAGES, ids=lambda options: options.storage)
def test_a_cleared_cache_is_an_empty_one(options: CacheOptions) -> None:
    model = make_model("Q-K=V", "GQA-2@w3")
    cache = KVCache(model.config.layers, max_tokens=9, options=options)
    run(model, TOKENS, cache)
    cache.clear()
    assert cache.length == 0
    assert [layer.num_stored for layer in cache.layers] == [0, 0]
    # Other rows, and another number format: nothing of the first text is left.
    for some in (model, make_model("Q-K=V", "GQA-2@w3").float()):
        tokens = torch.cat((TOKENS, TOKENS[:1] + 1)) % 13
        found = torch.cat([run(some, tokens[:, :4], cache), run(some, tokens[:, 4:], cache)], dim=1)
        with torch.no_grad():
            assert distance(found, some(tokens)) < (GATE if some is model else 1e-5)
        cache.clear()


def test_a_crop_that_one_layer_refuses_changes_no_layer() -> None:
    model = make_model("QKV", "QKV@w4", "QKV")
    cache = KVCache(model.config.layers)
    run(model, TOKENS[:, :6], cache)
    with pytest.raises(ValueError, match="got 2; the window has dropped earlier tokens"):
        cache.crop(4)
    assert {layer.length for layer in cache.layers} == {6}
    with torch.no_grad():
        assert distance(run(model, TOKENS[:, 6:], cache), model(TOKENS)[:, 6:]) < GATE


def test_a_call_that_was_broken_off_is_noticed_and_can_be_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_model("QKV", "Q-K=V")
    cache = KVCache(model.config.layers)
    run(model, TOKENS[:, :4], cache)
    _, second = model.stack.blocks
    with monkeypatch.context() as patch:
        patch.setattr(second, "forward", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(model, TOKENS[:, 4:6], cache)
    with pytest.raises(ValueError, match="layers that have seen equally many tokens, got 4 to 6"):
        run(model, TOKENS[:, 4:], cache)
    cache.crop(4)
    with torch.no_grad():
        assert distance(run(model, TOKENS[:, 4:], cache), model(TOKENS)[:, 4:]) < GATE


def test_padding_is_blanked_and_tokens_are_not() -> None:
    """Its bias would affect the scale that tokens of its block share."""
    layer = Attention(make_config("Q-K=V", causal=True)).double()
    randomize(layer, seed=11)
    options = CacheOptions(storage="int8", scales="channel", block=2)
    cache, mask = LayerCache(layer.config, options=options), padding_mask()
    with torch.no_grad():
        layer(random_input(13), cache=cache, attention_mask=mask)
    assert torch.equal(cache.read()["k"].any(dim=-1).any(dim=1), mask)
