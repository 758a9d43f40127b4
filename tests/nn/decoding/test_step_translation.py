"""A step as one call of a decoder with cross attention."""

import copy
from typing import Any

import pytest
import torch

from qkvary.arch.attention import AttentionConfig
from qkvary.arch.caches import CacheLayout, CacheOptions
from qkvary.arch.labels import parse_variant
from qkvary.arch.networks import BlockConfig, EncoderDecoderConfig
from qkvary.nn.decoding import step
from qkvary.nn.decoding.step import NativeStep
from qkvary.nn.encoder_decoder import EncoderDecoder, EncoderDecoderCache
from tests.contracts.variant_cases import randomize
from tests.nn.decoding.cases import distance
from tests.nn.decoding.test_step import FLOAT32
from tests.nn.decoding.test_step_networks import PLAIN

SOURCE = torch.tensor([[2, 6, 5, 4, 3], [2, 4, 3, 1, 1], [2, 5, 1, 1, 1]])
TARGET = torch.tensor([[2, 9, 8, 4, 7, 6], [2, 7, 7, 5, 3, 10], [2, 3, 4, 4, 9, 8]])
REAL = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]]).bool()
PROMPT = 3


def make(
    label: str,
    cross_sharing: str = "same",
    dtype: torch.dtype = torch.float32,
    **fields: Any,
) -> EncoderDecoder:
    """A network with random weights, drawn in double precision."""
    layer = AttentionConfig(d_model=20, num_heads=4, variant=parse_variant(label), causal=True)
    given: dict[str, Any] = {"block": BlockConfig(d_ff=27, activation="relu"), **fields}
    config = EncoderDecoderConfig(
        attention=layer,
        num_layers=2,
        vocabulary=11,
        source_vocabulary=7,
        max_tokens=13,
        cross_sharing=cross_sharing,
        **given,
    )
    model = EncoderDecoder(config).double().eval()
    randomize(model, seed=3)
    return model.to(dtype)


def new_cache(
    model: EncoderDecoder, layout: CacheLayout = "rotated", **options: Any
) -> EncoderDecoderCache:
    chosen = CacheOptions(layout=layout, storage="preallocated", **options)
    return EncoderDecoderCache(model.config, *model.encode(SOURCE), max_tokens=7, options=chosen)


@torch.no_grad()
def distance_of_steps(model: EncoderDecoder, layout: CacheLayout = "rotated") -> float:
    """The largest distance of steps from one pass of the same network in double precision."""
    reference = copy.deepcopy(model).double()
    expected = reference(TARGET, source=SOURCE, attention_mask=REAL)[:, PROMPT:]
    cache = new_cache(model, layout)
    model(TARGET[:, :PROMPT], cache=cache, attention_mask=REAL[:, :PROMPT])
    assert step.supports(model, cache)
    take = NativeStep(model, cache)
    found = [take(TARGET[:, at], REAL[:, : at + 1]) for at in range(PROMPT, TARGET.shape[1])]
    return distance(torch.stack(found, dim=1), expected)


@pytest.mark.parametrize("cross_sharing", ["none", "same"])
@pytest.mark.parametrize(
    "label", [*PLAIN, "Q-K=V@kv-norm", "Q-K=V@latent-8", "Q-MQA@latent-6@kv-norm"]
)
def test_every_sharing(label: str, cross_sharing: str) -> None:
    assert distance_of_steps(make(label, cross_sharing)) < FLOAT32


@pytest.mark.parametrize("layout", ["sources", "rotated", "split"])
@pytest.mark.parametrize("positions", ["none", "learned", "sinusoidal", "sinusoidal-halves"])
def test_positions_scales_and_layouts(positions: str, layout: CacheLayout) -> None:
    model = make("Q-K=V", positions=positions, scale_embedding=positions != "learned")
    assert distance_of_steps(model, layout) < FLOAT32


@torch.no_grad()
def test_rows_that_change_places_take_their_source_along() -> None:
    model, rows = make("Q-K=V"), torch.tensor([2, 0, 0, 1])
    cache = new_cache(model)
    model(TARGET[:, :PROMPT], cache=cache)
    take = NativeStep(model, cache)
    take(TARGET[:, PROMPT], None)
    cache.reorder(rows)
    found = take(TARGET[rows, PROMPT + 1], None)
    expected = model(TARGET[rows, : PROMPT + 2], source=SOURCE[rows])[:, -1]
    assert distance(found, expected) < FLOAT32


@torch.no_grad()
def test_a_source_of_padding_alone_is_met_as_layers_meet_it() -> None:
    model, source = make("Q-K=V"), SOURCE.clone()
    source[1] = model.config.padding
    options = CacheOptions(layout="rotated", storage="preallocated")
    cache = EncoderDecoderCache(model.config, *model.encode(source), max_tokens=7, options=options)
    assert not cache.memory_mask[1].any()
    model(TARGET[:, :PROMPT], cache=cache)
    found = NativeStep(model, cache)(TARGET[:, PROMPT], None)
    expected = model(TARGET[:, : PROMPT + 1], source=source)[:, -1]
    assert distance(found, expected) < FLOAT32


@torch.no_grad()
def test_what_a_step_does_not_take() -> None:
    for label, cross_sharing in (("QKV@rotary", "same"), ("QKV+", "none"), ("QKV@soft", "same")):
        model = make(label, cross_sharing)
        assert not step.supports(model, new_cache(model)), label
    model = make("QKV@rotary", "none")
    assert step.supports(model, new_cache(model))
    growing = EncoderDecoderCache(model.config, *model.encode(SOURCE), max_tokens=7)
    assert not step.supports(model, growing)
    assert not step.supports(make("QKV", dtype=torch.float64), new_cache(model))
