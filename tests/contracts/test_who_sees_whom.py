"""A hidden token (future, padding, another document) does not change an output by one bit.

Masks come in the types that tokenizers give; anything else is refused in a sentence.
"""

import math
import re

import pytest
import torch
from torch import Tensor

from qkvary.arch.attention import Kernel
from qkvary.arch.caches import CacheLayout, CacheOptions
from qkvary.nn.cache import LayerCache
from qkvary.nn.encoder import Encoder
from qkvary.nn.kernels import CORES
from qkvary.nn.layout import Layout
from tests.contracts.variant_cases import (
    BIDIRECTIONAL,
    EVERY_LABEL,
    GATE,
    LABELS,
    STRIDE,
    TOKENS,
    WINDOW,
    distance,
    make_config,
    make_encoder_config,
    make_layer,
    padding_mask,
    random_input,
    variant_pairs,
    variant_values,
)

KERNELS = ("explicit", "sdpa")
HOSTILE = (math.nan, math.inf, -math.inf, 1e30, 1e300)


def changed(x: Tensor, index: int) -> Tensor:
    """The same input with other content at one token."""
    result = x.clone()
    result[:, index] = random_input(79)[: len(x), index].to(x.dtype)
    return result


@variant_values("label, kernel", LABELS, KERNELS)
def test_the_future_does_not_change_the_past(label: str, kernel: Kernel) -> None:
    layer, x = make_layer(label, kernel=kernel).float(), random_input(89).float()
    with torch.no_grad():
        before = layer(x)
        for index in (1, 4, TOKENS - 1):
            after = layer(changed(x, index))
            assert torch.equal(after[:, :index], before[:, :index])
            assert not torch.equal(after[:, index], before[:, index])


@pytest.mark.parametrize("label", [label for label in LABELS if re.search("@(w3|s2)", label)])
def test_a_window_ends_and_a_stride_has_gaps(label: str) -> None:
    window = WINDOW if "@w3" in label else 1
    for causal in (True, False):
        layer, x = make_layer(label, causal=causal).float(), random_input(89).float()
        with torch.no_grad():
            before, after = layer(x), layer(changed(x, 2))
        # What a normalised diagonal divides by goes by the same distances.
        for i in range(2 if causal else 0, TOKENS):
            is_seen = abs(i - 2) < window or ("@s2" in label and (i - 2) % STRIDE == 0)
            assert torch.equal(after[:, i], before[:, i]) != is_seen


@variant_values("label", EVERY_LABEL)
def test_left_padding_changes_nothing(label: str) -> None:
    for causal in (True, False):
        layer, x = make_layer(label, causal=causal), random_input(89)
        mask = torch.ones(len(x), TOKENS, dtype=torch.bool)
        mask[:, :2] = False
        with torch.no_grad():
            found = layer(x, attention_mask=mask)[:, 2:]
            assert distance(found, layer(x[:, 2:])) < GATE


@variant_pairs("label, causal", EVERY_LABEL, (True, False))
def test_packed_documents_are_computed_as_if_alone(label: str, causal: bool) -> None:
    layer, x = make_layer(label, causal=causal), random_input(89)
    ids = torch.tensor([0, 0, 0, 1, 1, 1, 1]).expand(len(x), -1)
    with torch.no_grad():
        found = layer(x, document_ids=ids)
        alone = torch.cat([layer(x[:, :3]), layer(x[:, 3:])], dim=1)
    assert distance(found, alone) < GATE


# ---- whatever padding holds, tokens do not change: not by one bit, nor do gradients


def with_padding(x: Tensor, mask: Tensor, value: float) -> Tensor:
    return x.masked_fill(~mask[..., None], value)


@variant_values("label, causal, value", EVERY_LABEL, (True, False), HOSTILE)
@pytest.mark.parametrize("kernel", ["explicit", "auto"])
def test_a_layer_hides_padding(label: str, causal: bool, value: float, kernel: str) -> None:
    layer, mask = make_layer(label, causal=causal, kernel=kernel).eval(), padding_mask()
    x, found = random_input(59), list[Tensor]()
    for inputs in (x, with_padding(x, mask, value)):
        layer.zero_grad()
        own = inputs.requires_grad_()
        own.grad = None
        output = layer(own, attention_mask=mask)
        output[mask].square().sum().backward()
        assert own.grad is not None
        assert own.grad[~mask].eq(0.0).all()
        gradients = [part.grad for part in layer.parameters() if part.grad is not None]
        parts = (output[mask], own.grad[mask], *gradients)
        found.append(torch.cat([part.detach().flatten() for part in parts]))
    assert torch.equal(*found)
    assert found[0].isfinite().all()


@variant_values("label, value, layout", LABELS, HOSTILE, ["sources", "rotated", "split", "input"])
def test_a_cache_hides_padding(label: str, value: float, layout: CacheLayout) -> None:
    layer, mask, x = make_layer(label).eval(), padding_mask(), random_input(61)
    found: list[Tensor] = []
    for inputs in (x, with_padding(x, mask, value)):
        cache = LayerCache(layer.config, options=CacheOptions(layout=layout))
        with torch.no_grad():
            outputs = [
                layer(inputs[:, first:last], cache=cache, attention_mask=mask[:, :last])
                for first, last in ((0, 3), (3, 4), (4, TOKENS))
            ]
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
    layer, mask = make_layer(label, causal=False).eval(), padding_mask()
    x, memory = random_input(67), random_input(71)
    with torch.no_grad():
        expected = layer(x, memory=memory, attention_mask=mask)
        hostile = with_padding(memory, mask, value)
        assert torch.equal(layer(x, memory=hostile, attention_mask=mask), expected)
        assert distance(layer(x[1:2], memory=memory[1:2, 2:]), expected[1:2]) < GATE


def test_new_tokens_that_are_all_real_are_not_copied() -> None:
    mask, x = padding_mask(), random_input(73, tokens=2)
    layout = Layout(new_tokens=2, cached_tokens=TOKENS - 2, attention_mask=mask)
    assert torch.equal(layout.blank(x), with_padding(x, mask[:, -2:], 0.0))
    layout = Layout(new_tokens=2, cached_tokens=2, attention_mask=mask[:, 2:6])
    assert layout.blank(x) is x


# ---- masks and shapes


def test_a_mask_of_zeros_and_ones_is_a_mask() -> None:
    layer, x, mask = make_layer("Q-K=V"), random_input(11), padding_mask()
    assert torch.equal(layer(x, attention_mask=mask), layer(x, attention_mask=mask.long()))


def test_what_is_no_mask_is_refused() -> None:
    with pytest.raises(ValueError, match="expected attention_mask of booleans or of zeros and on"):
        Layout(new_tokens=3, attention_mask=torch.ones(2, 3))
    for name in ("attention_mask", "positions", "document_ids"):
        with pytest.raises(ValueError, match=rf"expected {name} of shape \[rows, 3\] .*, got \[3"):
            Layout(new_tokens=3, **{name: torch.ones(3, dtype=torch.long)})
        # Of what is cached too.
        message = rf"expected {name} of shape \[rows, 6\] \(3 cached and 3 new .*, got \[2, 3"
        with pytest.raises(ValueError, match=message):
            Layout(new_tokens=3, cached_tokens=3, **{name: torch.ones(2, 3).long()})  # type: ignore[arg-type]


def test_too_long_a_sequence_is_refused() -> None:
    encoder = Encoder(make_encoder_config("QKV"))
    with pytest.raises(ValueError, match="expected at most 17 tokens, got 0 cached and 18 new"):
        encoder(torch.zeros(2, 18, dtype=torch.long))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("label", ["QKV", "Q-GQA-2", "Q-MQA", "(Q=K-V)+", "MQA@linear"])
def test_nothing_in_nothing_out(label: str, kernel: str) -> None:
    x = random_input(13)
    assert make_layer(label, kernel=kernel)(x[:0]).shape == x[:0].shape


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "label", ["QKV", "Q-K=V@rotary", "(Q=K-V)+", "Q=K-V@alibi", "Q-K=V@linear"]
)
def test_rows_without_a_visible_key_stay_finite_under_autocast(label: str, kernel: str) -> None:
    layer, x = make_layer(label, kernel=kernel).float(), random_input(17).float()
    mask = torch.ones(x.shape[:2], dtype=torch.bool)
    mask[0] = False
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype=dtype):
            assert layer(x, attention_mask=mask).isfinite().all()
