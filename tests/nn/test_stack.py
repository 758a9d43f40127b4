"""Blocks that are computed again give the same gradients, to the bit, and keep less."""

import dataclasses

import pytest
import torch
from torch import Tensor

from qkvary.arch.attention import Kernel
from qkvary.arch.labels import as_variant
from qkvary.arch.variants import join_layers
from qkvary.nn.cache import KVCache
from qkvary.nn.language_model import LanguageModel
from tests.contracts.variant_cases import (
    DECISIVE,
    documents,
    make_language_model_config,
    padding_mask,
    randomize,
)

TOKENS = (torch.arange(3 * 7).view(3, 7) * 5) % 13


def make_model(label: str, *, dropout: float = 0.0, kernel: Kernel = "explicit") -> LanguageModel:
    config = make_language_model_config(label, embedding_dropout=dropout)
    layer = dataclasses.replace(config.layers[0], dropout=dropout, kernel=kernel)
    block = dataclasses.replace(config.block, dropout=dropout, inner_dropout=dropout)
    model = LanguageModel(dataclasses.replace(config, attention=layer, block=block)).train()
    randomize(model, seed=7)
    return model


def check_recomputed(model: LanguageModel, **given: Tensor) -> None:
    pairs = zip(*(take_step(model, again, **given) for again in (False, True)), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def take_step(model: LanguageModel, again: bool, **given: Tensor) -> list[Tensor]:
    model.stack.recompute_blocks = again
    model.zero_grad()
    torch.manual_seed(4)
    loss = model(TOKENS, targets=TOKENS.roll(-1, 1), **given)
    loss.backward()
    return [loss.detach(), torch.rand(1), *(part.grad for part in model.parameters())]


@pytest.mark.parametrize("kernel", ["explicit", "sdpa"])
def test_nothing_is_dropped_out_in_evaluation(kernel: Kernel) -> None:
    models = [make_model("QKV", dropout=dropout, kernel=kernel) for dropout in (0.3, 0.0)]
    assert not torch.equal(*(model(TOKENS) for model in models))
    assert torch.equal(*(model.eval()(TOKENS) for model in models))


@pytest.mark.parametrize("label", [*DECISIVE, "QKV@rotary@w3", "Q=K=V@diag-mean"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_same_gradients(label: str, dropout: float) -> None:
    check_recomputed(make_model(label, dropout=dropout))


def test_the_same_under_masks_and_autocast() -> None:
    given = {"attention_mask": padding_mask(), "document_ids": documents()}
    with torch.autocast("cpu", torch.bfloat16):
        check_recomputed(make_model("Q-K=V", dropout=0.3), **given)


def test_a_cache_is_written_once() -> None:
    model = make_model("Q-K=V").eval()
    model.stack.recompute_blocks = True
    cache = KVCache(model.config.layers)
    logits = model(TOKENS, cache=cache)
    assert cache.length == TOKENS.shape[1]
    logits.sum().backward()
    assert cache.length == TOKENS.shape[1]


def test_a_refused_call_leaves_the_cache_of_mixed_layers_unchanged() -> None:
    """The first layer stores tokens and the second keeps a state, which refuses the call."""
    labels = join_layers([as_variant("QKV"), as_variant("QKV@linear")])
    config = make_language_model_config("QKV").with_variant(labels)
    model = LanguageModel(config).eval()
    cache = KVCache(model.config.layers)
    model(TOKENS[:, :2], cache=cache)
    apart = torch.tensor([[0, 0, 0, 1, 0]] * 3)
    with pytest.raises(ValueError, match="expected the tokens of each document in a row"):
        model(TOKENS[:, 2:5], cache=cache, document_ids=apart)
    assert cache.length == 2
