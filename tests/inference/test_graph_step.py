"""Steps of fixed shapes give the logits of the network, whatever the caller does between them."""

import pytest
import torch
from torch import Tensor

from qkvary.arch.caches import CacheLayout, CacheOptions
from qkvary.arch.labels import parse_variant
from qkvary.inference.graph_step import FixedStep, GraphStep, has_fixed_shapes
from qkvary.nn.cache import KVCache
from qkvary.nn.language_model import LanguageModel
from tests.contracts.variant_cases import (
    GATE,
    LABELS,
    distance,
    make_language_model_config,
    randomize,
    variant_values,
)

CAPACITY = 15
FIXED = [
    label
    for label in LABELS
    if parse_variant(label).window is None
    and parse_variant(label).stride is None
    and not parse_variant(label).keeps_state
]
"""Variants whose layers keep every token, and see it whatever its place."""


def make(
    label: str, device: str, layout: CacheLayout = "rotated", positions: str = "none"
) -> tuple[LanguageModel, KVCache, Tensor]:
    """A network, an empty cache and tokens."""
    network = LanguageModel(make_language_model_config(label, positions=positions)).double().eval()
    randomize(network, 1)
    network = network.to(device)
    options = CacheOptions(layout=layout, storage="preallocated")
    cache = KVCache(network.config.layers, max_tokens=CAPACITY, options=options)
    tokens = torch.randint(13, (3, CAPACITY), generator=torch.Generator().manual_seed(2))
    return network, cache, tokens.to(device)


@pytest.fixture(
    params=[("cpu", FixedStep), pytest.param(("cuda", GraphStep), marks=pytest.mark.gpu)]
)
def kind(request: pytest.FixtureRequest) -> tuple[str, type[FixedStep]]:
    """Where, and how: a GPU captures what is run elsewhere."""
    return request.param


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a cache outgrows what a step reads."""
    monkeypatch.setattr("qkvary.inference.graph_step.LEAST_SIZE", 5)


@variant_values("label, positions", FIXED, ["none", "learned"])
@torch.inference_mode()
def test_steps_equal_one_pass(
    label: str, positions: str, kind: tuple[str, type[FixedStep]]
) -> None:
    """Padding, growth over two sizes, a crop, other rows."""
    device, step_type = kind
    network, cache, tokens = make(label, device, positions=positions)
    mask = torch.ones(3, CAPACITY, dtype=torch.bool, device=device)
    mask[1, :2] = False
    expected = network(tokens, attention_mask=mask)
    network(tokens[:, :3], cache=cache, attention_mask=mask[:, :3])
    step = step_type(network, cache)

    def check(at: int, rows: Tensor) -> None:
        found = step(tokens[rows, at], mask[rows, : at + 1])
        assert distance(found, expected[rows, at]) < 10 * GATE
        assert cache.length == at + 1

    every = torch.arange(3, device=device)
    for at in range(3, 9):
        check(at, every)
    cache.crop(6)
    for at in range(6, 9):
        check(at, every)
    # As many rows in other places, the padded one too.
    turned = torch.tensor([1, 2, 0], device=device)
    cache.reorder(turned)
    for at in range(9, CAPACITY - 2):
        check(at, turned)
    cache.reorder(torch.tensor([2, 0, 1], device=device))
    fewer = torch.tensor([2, 1], device=device)
    cache.reorder(fewer)
    for at in range(CAPACITY - 2, CAPACITY):
        check(at, fewer)
    with pytest.raises(ValueError, match="expected at most"):
        step(tokens[fewer, 0])


@pytest.mark.parametrize("layout", ["sources", "rotated", "split", "input"])
@pytest.mark.parametrize("label", ["Q-K=V@rotary", "Q-MQA", "QKV@alibi", "(Q=K-V)+"])
@torch.inference_mode()
def test_layouts(label: str, layout: CacheLayout, kind: tuple[str, type[FixedStep]]) -> None:
    device, step_type = kind
    network, cache, tokens = make(label, device, layout)
    expected = network(tokens)
    network(tokens[:, :1], cache=cache)
    step = step_type(network, cache)
    found = [step(tokens[:, at]) for at in range(1, CAPACITY)]
    assert distance(torch.stack(found, 1), expected[:, 1:]) < 10 * GATE


def test_windows_states_and_codes_have_no_fixed_place() -> None:
    for label in ("Q-K=V@w3", "QKV@s2"):
        network, cache, tokens = make(label, "cpu")
        network(tokens[:, :1], cache=cache)
        assert not has_fixed_shapes(cache)
    network, cache, tokens = make("QKV@linear", "cpu")
    network(tokens[:, :1], cache=cache)
    assert not has_fixed_shapes(cache)
    with pytest.raises(ValueError, match="expected a preallocated cache"):
        cache.view(5, torch.zeros(1, dtype=torch.long))
    growing = KVCache(make("QKV", "cpu")[0].config.layers)
    assert not has_fixed_shapes(growing)
