"""Whatever padding holds, tokens do not change: not by one bit, nor do gradients."""

import math

import pytest
import torch
from torch import Tensor

from qkvary.arch.caches import CacheOptions
from qkvary.nn.attention import Attention
from qkvary.nn.cache import KVCache
from qkvary.nn.kernels import CORES
from qkvary.nn.layout import Layout
from tests.contracts.variant_cases import (
    BIDIRECTIONAL,
    EVERY_LABEL,
    LABELS,
    TOKENS,
    make_config,
    padding_mask,
    random_input,
    randomize,
    variant_values,
)

HOSTILE = (math.nan, math.inf, -math.inf, 1e30, 1e300)


def make(label: str, *, causal: bool, kernel: str = "auto") -> Attention:
    layer = Attention(make_config(label, causal=causal, kernel=kernel)).double()
    randomize(layer, seed=53)
    return layer.eval()


def with_padding(x: Tensor, mask: Tensor, value: float) -> Tensor:
    return x.masked_fill(~mask[..., None], value)


@variant_values("label, causal, value", EVERY_LABEL, (True, False), HOSTILE)
@pytest.mark.parametrize("kernel", ["explicit", "auto"])
def test_a_layer_hides_padding(label: str, causal: bool, value: float, kernel: str) -> None:
    layer, mask, x = make(label, causal=causal, kernel=kernel), padding_mask(), random_input(59)
    found: list[Tensor] = []
    for inputs in (x, with_padding(x, mask, value)):
        layer.zero_grad()
        own = inputs.requires_grad_()
        own.grad = None
        output = layer(own, attention_mask=mask)
        output[mask].square().sum().backward()
        assert own.grad is not None
        gradients = [part.grad for part in layer.parameters() if part.grad is not None]
        found.append(torch.cat([part.detach().flatten() for part in (output[mask], *gradients)]))
        assert own.grad[~mask].eq(0.0).all()
        found[-1] = torch.cat([found[-1], own.grad[mask].flatten()])
    assert torch.equal(*found)
    assert found[0].isfinite().all()


@variant_values("label, value, layout", LABELS, HOSTILE, ["sources", "rotated", "split", "input"])
def test_a_cache_hides_padding(label: str, value: float, layout: str) -> None:
    layer, mask, x = make(label, causal=True), padding_mask(), random_input(61)
    found: list[Tensor] = []
    for inputs in (x, with_padding(x, mask, value)):
        cache = KVCache([layer.config], options=CacheOptions(layout=layout)).layers[0]
        outputs: list[Tensor] = []
        for first, last in ((0, 3), (3, 4), (4, TOKENS)):
            with torch.no_grad():
                part = layer(inputs[:, first:last], cache=cache, attention_mask=mask[:, :last])
            outputs.append(part)
        found.append(torch.cat(outputs, dim=1)[mask])
    assert torch.equal(*found)
    assert found[0].isfinite().all()


CROSSED = [
    label
    for label in BIDIRECTIONAL
    if not any(word in label for word in ("@w", "@s2", "diag"))
    and CORES[make_config(label, causal=False).variant.core].has_memory
]


@variant_values("label, value", CROSSED, HOSTILE)
def test_cross_attention_hides_padding_of_the_memory(label: str, value: float) -> None:
    layer, mask = make(label, causal=False), padding_mask()
    x, memory = random_input(67), random_input(71)
    with torch.no_grad():
        expected = layer(x, memory=memory, attention_mask=mask)
        hostile = with_padding(memory, mask, value)
        assert torch.equal(layer(x, memory=hostile, attention_mask=mask), expected)


def test_new_tokens_that_are_all_real_are_not_copied() -> None:
    mask, x = padding_mask(), random_input(73, tokens=2)
    layout = Layout(new_tokens=2, cached_tokens=TOKENS - 2, attention_mask=mask)
    assert torch.equal(layout.blank(x), with_padding(x, mask[:, -2:], 0.0))
    layout = Layout(new_tokens=2, cached_tokens=2, attention_mask=mask[:, 2:6])
    assert layout.blank(x) is x
