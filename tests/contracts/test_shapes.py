"""Every variant once with the shapes in annotations executed: forward, backward and decoding."""

import pytest
import torch

from qkvary.arch.attention import AttentionConfig
from qkvary.nn.attention import Attention
from qkvary.nn.cache import KVCache, LayerCache
from qkvary.nn.encoder import Encoder
from qkvary.nn.language_model import LanguageModel
from tests.contracts.variant_cases import (
    BATCH,
    FUSED,
    LABELS,
    TOKENS,
    documents,
    make_config,
    make_encoder_config,
    make_language_model_config,
    padding_mask,
    random_input,
    variant_values,
)

pytestmark = pytest.mark.usefixtures("executed_shapes")

TEXTS = torch.arange(BATCH * TOKENS).view(BATCH, TOKENS) % 13


@variant_values("label", LABELS)
def test_shapes_are_those_annotated(label: str) -> None:
    masks = {"attention_mask": padding_mask(), "document_ids": documents()}
    model = LanguageModel(make_language_model_config(label))
    model(TEXTS, targets=TEXTS, **masks).backward()
    encoder = Encoder(make_encoder_config(label))
    encoder(TEXTS, attention_mask=masks["attention_mask"]).sum().backward()
    cache = KVCache(model.config.layers)
    with torch.no_grad():
        assert model(TEXTS[:, :4], cache=cache).shape == (BATCH, 4, 13)
        assert model(TEXTS[:, 4:5], cache=cache).shape == (BATCH, 1, 13)


@variant_values("label", FUSED)
def test_shapes_of_the_fused_kernel(label: str) -> None:
    config: AttentionConfig = make_config(label, causal=True, kernel="sdpa")
    layer, x = Attention(config), random_input(71).float()
    assert layer(x, attention_mask=padding_mask(), document_ids=documents()).shape == x.shape
    cache = LayerCache(config)
    assert layer(x[:, :4], cache=cache).shape == x[:, :4].shape
    assert layer(x[:, 4:5], cache=cache).shape == x[:, 4:5].shape


def test_a_wrong_shape_is_found() -> None:
    layer = Attention(make_config("Q-K=V", causal=True))
    with pytest.raises(TypeError, match="Type-check error whilst checking the parameters of"):
        layer(torch.ones(3, 7))
