"""Use the variants named on the command line with the shapes in annotations executed.

A separate program: what executes them is put in when ``qkvary.nn`` is imported, and makes short
calls take several times as long, so that other tests do without it.
"""

import sys

import pytest
import torch
from jaxtyping import install_import_hook
from torch.utils.flop_counter import flop_registry


def forget() -> None:
    """Let a fork import anew what was imported without executed shapes."""
    for name in list(sys.modules):
        if name.startswith(("qkvary", "tests.contracts")):
            del sys.modules[name]
    for target, formula in list(flop_registry.items()):
        if formula.__module__.startswith("qkvary"):
            del flop_registry[target]


forget()
install_import_hook("qkvary.nn", "beartype.beartype")

from qkvary.nn.attention import Attention  # noqa: E402
from qkvary.nn.cache import KVCache, LayerCache  # noqa: E402
from qkvary.nn.encoder import Encoder  # noqa: E402
from qkvary.nn.language_model import LanguageModel  # noqa: E402
from tests.contracts.variant_cases import (  # noqa: E402
    BATCH,
    FUSED,
    TOKENS,
    documents,
    make_config,
    make_encoder_config,
    make_language_model_config,
    padding_mask,
    random_input,
)

TEXTS = torch.arange(BATCH * TOKENS).view(BATCH, TOKENS) % 13


def use_networks(label: str) -> None:
    """Forward, backward and decoding."""
    masks = {"attention_mask": padding_mask(), "document_ids": documents()}
    model = LanguageModel(make_language_model_config(label))
    model(TEXTS, targets=TEXTS, **masks).backward()
    encoder = Encoder(make_encoder_config(label))
    encoder(TEXTS, attention_mask=masks["attention_mask"]).sum().backward()
    cache = KVCache(model.config.layers)
    with torch.no_grad():
        assert model(TEXTS[:, :4], cache=cache).shape == (BATCH, 4, 13)
        assert model(TEXTS[:, 4:5], cache=cache).shape == (BATCH, 1, 13)


def use_fused_kernel(label: str) -> None:
    config = make_config(label, causal=True, kernel="sdpa")
    layer, x = Attention(config), random_input(71).float()
    assert layer(x, attention_mask=padding_mask(), document_ids=documents()).shape == x.shape
    cache = LayerCache(config)
    assert layer(x[:, :4], cache=cache).shape == x[:, :4].shape
    assert layer(x[:, 4:5], cache=cache).shape == x[:, 4:5].shape


def give_wrong_shape() -> None:
    layer = Attention(make_config("Q-K=V", causal=True))
    with pytest.raises(TypeError, match="Type-check error whilst checking the parameters of"):
        layer(torch.ones(3, 7))


def main() -> None:
    torch.set_num_threads(1)
    give_wrong_shape()
    for label in sys.argv[1:]:
        use_networks(label)
        if label in FUSED:
            use_fused_kernel(label)
        print(label, "has the shapes that are annotated")  # noqa: T201


if __name__ == "__main__":
    main()
