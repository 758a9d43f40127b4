"""A step as one call over the states of linear attention."""

import copy

import pytest
import torch
from torch import Tensor

from qkvary.nn.cache import KVCache
from qkvary.nn.decoding.step import NativeStep
from tests.nn.decoding.cases import distance
from tests.nn.decoding.test_step import FLOAT32, NEW, PROMPT, make, new_cache, texts


@torch.no_grad()
def test_padding_before_and_among_the_tokens_adds_nothing() -> None:
    """A finished row goes on as padding; its state fades and nothing is added."""
    model = make("GQA-2@linear@decay-learned")
    tokens = texts(3)
    mask = torch.ones(3, PROMPT + NEW, dtype=torch.bool)
    mask[1, :2] = mask[2, PROMPT + 1] = False
    expected = copy.deepcopy(model).double()(tokens, attention_mask=mask)
    cache = new_cache(model, "rotated")
    model(tokens[:, :PROMPT], cache=cache, attention_mask=mask[:, :PROMPT])
    take = NativeStep(model, cache)
    for place in range(PROMPT, PROMPT + NEW):
        found = take(tokens[:, place], mask[:, : place + 1])
        real = mask[:, place]
        assert distance(found[real], expected[real, place]) < FLOAT32


def states(cache: KVCache) -> list[Tensor]:
    """The tensors of the states in a cache themselves."""
    kept = [layer.state.read() for layer in cache.layers if layer.state is not None]
    return [part for state in kept if state is not None for part in state if part is not None]


@torch.no_grad()
def test_a_step_leaves_earlier_states_and_those_of_a_failure_as_they_were() -> None:
    """A state that others hold is not written to, and a refused token adds nothing."""
    model = make("Q-K=V@linear")
    tokens = texts(3)
    expected = copy.deepcopy(model).double()(tokens)
    cache = new_cache(model, "rotated")
    model(tokens[:, :PROMPT], cache=cache)
    take, held = NativeStep(model, cache), states(cache)
    copied = [part.clone() for part in held]
    with pytest.raises(IndexError, match="expected tokens from 0 to 22"):
        take(tokens[:, PROMPT] + 100, None)
    assert all(map(torch.equal, states(cache), copied))
    take(tokens[:, PROMPT], None)
    assert cache.length == PROMPT + 1
    assert all(torch.equal(one, other) for one, other in zip(held, copied, strict=True))
    # Calls of the network, rows in another order and steps follow each other.
    cache.reorder(torch.tensor([2, 0]))
    rows = tokens[[2, 0]]
    among = model(rows[:, PROMPT + 1 : PROMPT + 2], cache=cache)[:, -1]
    assert distance(among, expected[[2, 0], PROMPT + 1]) < FLOAT32
    assert distance(take(rows[:, PROMPT + 2], None), expected[[2, 0], PROMPT + 2]) < FLOAT32
    cache.clear()
    with pytest.raises(ValueError, match="expected a cache that has seen a token, got an empty"):
        take(rows[:, 0], None)
