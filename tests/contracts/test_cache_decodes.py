"""The cache keeps what the plain decoder keeps, and a window drops only tokens out of sight.

That any split into chunks decodes like one forward is tested with every layout in
``test_cache_options.py``.
"""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qkvary.arch.attention import AttentionConfig, Kernel, PositionConfig
from qkvary.arch.caches import CacheLayout, CacheOptions
from qkvary.nn.attention import Attention
from qkvary.nn.cache import LayerCache
from tests.conftest import examples
from tests.contracts.variant_cases import (
    BATCH,
    CUTS,
    GATE,
    IN_REFERENCE,
    LABELS,
    TOKENS,
    distance,
    documents,
    feed,
    make_config,
    make_layer,
    random_input,
    randomize,
    variant_values,
)
from tests.reference.attention import attend
from tests.reference.cache import decode

WINDOWED = (
    "QKV",
    "Q-K=V@relative",
    "Q=K-V@alibi",
    "Q-GQA-2@rotary",
    "Q=K=V@rotary",
    "I-K=V@alibi",
    "Q=V@relative",
    "(Q-MQA)+",
    "(Q=K-V)+@rotary",
    "(GQA-2)+@relative",
    "Q=K-V@diag-mean",
    "(Q=K=V)+@diag-norm@alibi",
)
"""Every term of the scores, each to be met by windows of any length."""

ROWS = BATCH * TOKENS


def _rows(elements: st.SearchStrategy[int]) -> st.SearchStrategy[Tensor]:
    values = st.lists(elements, min_size=ROWS, max_size=ROWS)
    return values.map(lambda drawn: torch.tensor(drawn).view(BATCH, TOKENS))


CALLS = st.fixed_dictionaries(
    {},
    optional={
        # Padding may stand anywhere and documents may be interleaved.
        "attention_mask": _rows(st.integers(0, 1)).map(Tensor.bool),
        "document_ids": _rows(st.integers(0, 2)) | st.just(documents()),
        "positions": _rows(st.integers(0, 16)),
    },
)
"""What a caller may say about a batch, in any combination."""

WINDOWS = st.integers(1, TOKENS + 2)
"""From a token that sees only itself to a window that nothing leaves."""


@pytest.mark.parametrize("layout", ["sources", "rotated", "input"])
def test_a_rotated_value_of_its_own_is_decoded(layout: CacheLayout) -> None:
    layer = make_layer("QKV@rotary", position=PositionConfig(rotates_value=True))
    x, cache = random_input(71), LayerCache(layer.config, options=CacheOptions(layout=layout))
    found = feed(layer, x, [0, 3, 6, TOKENS], cache)
    with torch.no_grad():
        assert distance(found, layer(x)) < GATE


def with_window(config: AttentionConfig, window: int | None) -> AttentionConfig:
    return dataclasses.replace(config, variant=dataclasses.replace(config.variant, window=window))


@pytest.mark.parametrize("label", WINDOWED)
@examples(6)
@given(window=WINDOWS, cuts=CUTS, kernel=st.sampled_from(["explicit", "sdpa"]), call=CALLS)
def test_windows_drop_only_what_nobody_sees_again(
    label: str, window: int, cuts: list[int], kernel: Kernel, call: dict[str, Tensor]
) -> None:
    config = with_window(make_config(label, causal=True, kernel=kernel), window)
    layer = Attention(config).double()
    randomize(layer, seed=67)
    x = random_input(71)
    real = call.get("attention_mask", torch.ones(BATCH, TOKENS, dtype=torch.bool))[..., None]
    with torch.no_grad():
        found = feed(layer, x, cuts, LayerCache(config), **call)
        whole = layer(x, **call)
        named = {IN_REFERENCE[name]: one for name, one in call.items()}
        expected = attend(config, dict(layer.named_parameters()), x, **named)
    assert distance_of_real(found, expected, real) < GATE
    assert distance_of_real(whole, expected, real) < GATE


def distance_of_real(found: Tensor, expected: Tensor, real: Tensor) -> float:
    """The distance over real tokens; none where everything is padding."""
    return distance(found * real, expected * real) if real.any() else 0.0


@variant_values("label", LABELS)
def test_the_cache_holds_what_the_plain_decoder_keeps(label: str) -> None:
    layer, x = make_layer(label), random_input(71, batch=2, tokens=4)
    cache = LayerCache(layer.config)
    with torch.no_grad():
        found = feed(layer, x, [0, 1, 2, 3, 4], cache)
        expected, numbers = decode(layer.config, dict(layer.named_parameters()), x)
    assert distance(found, expected) < GATE
    assert cache.nbytes == numbers * 8


def test_a_window_bounds_what_is_kept_and_not_what_was_seen() -> None:
    config = with_window(make_config("Q-K=V", causal=True), 4)
    layer, x = Attention(config), random_input(71).float()
    cache = LayerCache(config, max_tokens=6)
    layer(x[:, :5], cache=cache)
    assert (cache.length, cache.num_stored, cache.nbytes) == (5, 3, BATCH * 3 * 20 * 4)
    layer(x[:, 5:6], cache=cache)
    with pytest.raises(ValueError, match="expected at most 6 tokens, got 7"):
        layer(x[:, 6:], cache=cache)
    assert (cache.length, cache.num_stored) == (6, 3)


def test_a_bidirectional_layer_has_nothing_to_cache() -> None:
    layer = make_layer("Q-K=V", causal=False)
    with pytest.raises(ValueError, match="expected a causal layer with a cache, got a bidir"):
        layer(random_input(73), cache=LayerCache(layer.config))
