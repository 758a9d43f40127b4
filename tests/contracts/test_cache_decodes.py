"""Any split of a sequence into chunks decodes through the cache like one forward."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkvary.arch.attention import Kernel, ValueRope
from qkvary.nn.attention import Attention
from qkvary.nn.cache import KVCache, LayerCache
from qkvary.nn.language_model import LanguageModel
from tests.contracts.variant_cases import (
    BATCH,
    DECISIVE,
    GATE,
    LABELS,
    TOKENS,
    distance,
    documents,
    make_config,
    make_language_model_config,
    padding_mask,
    random_input,
    randomize,
)
from tests.reference.cache import decode

CUTS = st.sets(st.integers(1, TOKENS - 1)).map(lambda cuts: [0, *sorted(cuts), TOKENS])


def decode_in_chunks(
    layer: Attention, x: Tensor, cuts: list[int], **whole: Tensor | None
) -> Tensor:
    """The outputs of all tokens, fed chunk by chunk; masks cover what is cached and new."""
    cache = LayerCache(layer.config)
    outputs: list[Tensor] = []
    for start, stop in itertools.pairwise(cuts):
        call = {name: None if t is None else t[:, :stop] for name, t in whole.items()}
        outputs.append(layer(x[:, start:stop], cache=cache, **call))
        assert cache.length == stop
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("label", LABELS)
@settings(max_examples=4)
@given(cuts=CUTS, kernel=st.sampled_from(["explicit", "sdpa"]), masked=st.booleans())
def test_every_split_of_every_variant(
    label: str, cuts: list[int], kernel: Kernel, masked: bool
) -> None:
    layer = Attention(make_config(label, causal=True, kernel=kernel)).double()
    randomize(layer, seed=67)
    x = random_input(71)
    real = padding_mask()[..., None] if masked else torch.ones(BATCH, TOKENS, 1)
    call = {"attention_mask": padding_mask(), "document_ids": documents()} if masked else {}
    with torch.no_grad():
        found, expected = decode_in_chunks(layer, x, cuts, **call), layer(x, **call)
    assert distance(found * real, expected * real) < GATE


@pytest.mark.filterwarnings("ignore:value_rope 'rotated'")
@pytest.mark.parametrize("value_rope", ["none", "counter", "rotated"])
@pytest.mark.parametrize("label", [label for label in LABELS if "rotary" in label])
@settings(max_examples=4)
@given(cuts=CUTS)
def test_every_meaning_of_a_rotated_value(
    label: str, value_rope: ValueRope, cuts: list[int]
) -> None:
    layer = Attention(make_config(label, causal=True, value_rope=value_rope)).double()
    randomize(layer, seed=67)
    x = random_input(71)
    with torch.no_grad():
        assert distance(decode_in_chunks(layer, x, cuts), layer(x)) < GATE


@pytest.mark.parametrize("label", DECISIVE)
@settings(max_examples=5)
@given(cuts=CUTS)
def test_language_models_decode_like_one_forward(label: str, cuts: list[int]) -> None:
    model = LanguageModel(make_language_model_config(label, positions="learned")).double()
    randomize(model, seed=73)
    tokens = torch.arange(TOKENS)[None].expand(2, -1) + torch.tensor([[0], [5]])
    cache = KVCache(model.config.layers, max_tokens=TOKENS)
    with torch.no_grad():
        chunks = [
            model(tokens[:, start:stop], cache=cache) for start, stop in itertools.pairwise(cuts)
        ]
        assert distance(torch.cat(chunks, dim=1), model(tokens)) < GATE


@pytest.mark.parametrize("label", LABELS)
def test_the_cache_holds_what_the_plain_decoder_keeps(label: str) -> None:
    layer = Attention(make_config(label, causal=True)).double()
    randomize(layer, seed=67)
    x = random_input(71, batch=2, tokens=4)
    cache = LayerCache(layer.config)
    with torch.no_grad():
        steps = [layer(x[:, i : i + 1], cache=cache) for i in range(4)]
        expected, numbers = decode(layer.config, dict(layer.named_parameters()), x)
    assert distance(torch.cat(steps, dim=1), expected) < GATE
    assert cache.nbytes == numbers * 8


@pytest.mark.parametrize("label", ["Q-K=V", "Q=K=V", "I-K=V", "Q-MQA"])
def test_k_alone_is_bit_equal_to_k_and_v(label: str) -> None:
    """A K-only cache against a network that keeps an equal K and V: the same bits, every dtype."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        layer = Attention(make_config(label, causal=True)).to(dtype)
        randomize(layer, seed=67)
        x = random_input(71).to(dtype)
        cache = LayerCache(layer.config)
        with torch.no_grad():
            layer(x[:, :-1], cache=cache)
            assert cache.sources == ("k",)
            kept = cache.append(
                {"k": torch.zeros(BATCH, layer.config.num_kv_heads, 0, 5).to(dtype)}
            )
            source = layer.sources(x[:, :-1])["k"]
        assert torch.equal(kept["k"], source)


def test_what_does_not_fit_is_refused() -> None:
    model = LanguageModel(make_language_model_config("Q-K=V"))
    tokens = torch.zeros(2, 3, dtype=torch.long)
    cache = KVCache(model.config.layers, max_tokens=5)
    model(tokens, cache=cache)
    with pytest.raises(ValueError, match="expected at most 5 tokens, got 6"):
        model(tokens, cache=cache)
    assert (cache.length, cache.nbytes) == (3, 2 * 2 * 3 * 20 * 4)
    with pytest.raises(ValueError, match="expected a batch of 2 as stored, got 1"):
        model(tokens[:1, :1], cache=cache)
    with pytest.raises(ValueError, match="expected at most 17 tokens, got 3 cached and 15 new"):
        model(torch.zeros(2, 15, dtype=torch.long), cache=cache)


@pytest.mark.parametrize("name", ["attention_mask", "positions", "document_ids"])
def test_masks_must_cover_what_is_cached(name: str) -> None:
    model = LanguageModel(make_language_model_config("Q-K=V"))
    cache = KVCache(model.config.layers)
    tokens = torch.zeros(2, 3, dtype=torch.long)
    model(tokens, cache=cache)
    given = torch.ones(2, 3, dtype=torch.bool if name == "attention_mask" else torch.long)
    message = rf"expected {name} of \[rows, 6\] \(3 cached and 3 new tokens\), got \[2, 3\]"
    with pytest.raises(ValueError, match=message):
        model(tokens, cache=cache, **{name: given})


def test_a_bidirectional_layer_has_nothing_to_cache() -> None:
    config = make_config("Q-K=V", causal=False)
    layer = Attention(config)
    with pytest.raises(ValueError, match="expected a causal layer with a cache, got a bidir"):
        layer(random_input(73).float(), cache=LayerCache(config))
