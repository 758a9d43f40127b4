"""Decoding is one function: however a text is cut, cropped, padded, batched, stored or computed.

Every network with every number format, against float64 by the gate of ``decoding_gates``; by
default one format each, by turns.
"""

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from qkvary.arch.caches import CacheLayout, CacheOptions
from qkvary.inference.decoding import complete, pad_left, prefill
from qkvary.inference.requests import Request, Sampling
from qkvary.inference.stepping import Stepper
from qkvary.nn.cache import DEFAULT_OPTIONS, KVCache
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.terms import normalise_diagonal
from tests.contracts.decoding_gates import (
    CEILINGS,
    DTYPES,
    MAX_TOKENS,
    NETWORKS,
    VOCABULARY,
    assert_one_function,
    exact_network,
    find_network,
    random_tokens,
    with_kernel,
)
from tests.contracts.variant_cases import distance, make_config

CPU = torch.device("cpu")


def in_every_format(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test for every network and number format: by default one format each, by turns."""
    cases = [
        pytest.param(name, dtype, marks=pytest.mark.slow if (one + other) % len(DTYPES) else ())
        for one, name in enumerate(NETWORKS)
        for other, dtype in enumerate(DTYPES)
    ]
    return pytest.mark.parametrize(("name", "dtype"), cases)(test)


def make_cache(model: LanguageModel, options: CacheOptions = DEFAULT_OPTIONS) -> KVCache:
    return KVCache(model.config.layers, max_tokens=MAX_TOKENS, options=options)


def feed(model: LanguageModel, tokens: Tensor, sizes: Sequence[int], cache: KVCache) -> Tensor:
    with torch.no_grad():
        parts = [model(part, cache=cache) for part in tokens.split(list(sizes), dim=1)]
    return torch.cat(parts, dim=1)


def whole(model: LanguageModel, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model(tokens)


@in_every_format
def test_every_route_is_one_function(name: str, dtype: torch.dtype) -> None:
    """Kernels, layouts and storages, a text that is cropped and goes on included."""
    model, tokens = find_network(name, dtype), random_tokens(2, 11)
    preallocated = make_cache(model, CacheOptions(layout="rotated", storage="preallocated"))
    feed(model, (tokens[:, :3] + torch.tensor([0, 0, 1])) % VOCABULARY, [2, 1], preallocated)
    preallocated.crop(2)
    start = feed(model, tokens[:, :2], [2], make_cache(model))
    folded = make_cache(model, CacheOptions(layout="split", kernel="folded"))
    made_again = CacheOptions(layout="latent" if "low rank" in name else "input")
    layouts: tuple[CacheLayout, ...] = ("sources", "rotated")
    stepped = {f"stepped, {layout}": step_through(model, tokens, layout) for layout in layouts}
    assert_one_function(
        whole(exact_network(name, dtype), tokens),
        whole(model, tokens),
        sdpa=whole(with_kernel(model, "sdpa"), tokens),
        cached=feed(model, tokens, [5, 1, 1, 4], make_cache(model)),
        cropped=torch.cat((start, feed(model, tokens[:, 2:], [1, 5, 3], preallocated)), dim=1),
        folded=feed(model, tokens, [6, 1, 1, 3], folded),
        made_again=feed(model, tokens, [4, 1, 6], make_cache(model, made_again)),
        **stepped,
    )


def step_through(model: LanguageModel, tokens: Tensor, layout: CacheLayout) -> Tensor:
    """Logits of steps as one native call, where that supports the network, after 5 tokens."""
    options = CacheOptions(layout=layout, storage="preallocated", kernel="native")
    cache = make_cache(model, options)
    read = feed(model, tokens[:, :5], [5], cache)
    with torch.no_grad():
        stepper = Stepper(model, cache)
        steps = [stepper(token) for token in tokens[:, 5:].unbind(dim=1)]
    return torch.cat((read, torch.stack(steps, dim=1)), dim=1)


@pytest.mark.compile
# The compiler of torch imports what torch itself calls deprecated.
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize("name", ["counter", "mixed layers", "low rank"])
def test_a_compiled_network_is_the_same_function(name: str) -> None:
    model, tokens = find_network(name, torch.float32), random_tokens(2, 11)
    compiled = torch.compile(model)
    cache = make_cache(model)
    with torch.no_grad():
        at_once = compiled(tokens)
        parts = [compiled(part, cache=cache) for part in tokens.split([5, 1, 1, 4], dim=1)]
    exact = whole(exact_network(name, torch.float32), tokens)
    cached = torch.cat(parts, dim=1)
    assert_one_function(exact, whole(model, tokens), compiled=at_once, cached=cached)


# ---- batches and padding

PROMPTS = ((3, 1, 4), (1, 5, 9, 2, 6, 5, 3), (5,), (8, 9, 7, 9))
FOLLOWING = (11, 2)
"""Tokens after every prompt."""


def continue_prompts(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    options: CacheOptions = DEFAULT_OPTIONS,
    padding: int | None = None,
    content: int = 0,
) -> Tensor:
    """Logits after every prompt and the tokens that follow, [rows, 3, vocabulary].

    Args:
        model: The network.
        prompts: One a row.
        options: Of the cache.
        padding: Columns that are padding in all rows, besides what the lengths ask for.
        content: What stands in the padding, by its seed; 0 for what ``pad_left`` writes.
    """
    tokens, mask = pad_left([[0] * (padding or 0) + list(prompt) for prompt in prompts], CPU)
    if padding is not None:
        mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.clone()
        for row, prompt in enumerate(prompts):
            mask[row, : tokens.shape[1] - len(prompt)] = False
    if content and mask is not None:
        other = random_tokens(*tokens.shape, seed=content)
        tokens = torch.where(mask, tokens, other)
    cache = make_cache(model, options)
    with torch.no_grad():
        logits = [prefill(model, tokens, cache=cache, attention_mask=mask, chunk=3)]
        for token in FOLLOWING:
            if mask is not None:
                mask = torch.cat((mask, mask.new_ones(len(prompts), 1)), dim=1)
            row = torch.full((len(prompts), 1), token)
            logits.append(model(row, cache=cache, attention_mask=mask)[:, -1])
    return torch.stack(logits, dim=1)


COMPOSITIONS = [(0, 1), (0, 2), (1, 2), *itertools.permutations(range(3))]


@in_every_format
def test_left_padding_changes_nothing_and_its_content_not_a_bit(
    name: str, dtype: torch.dtype
) -> None:
    model, prompts = find_network(name, dtype), [PROMPTS[0], PROMPTS[2]]
    exact, alone = (
        torch.cat([continue_prompts(network, [prompt]) for prompt in prompts])
        for network in (exact_network(name, dtype), model)
    )
    for padding in (0, 1, 3):
        found = continue_prompts(model, prompts, padding=padding)
        assert_one_function(exact, alone, padded=found)
    assert torch.equal(found, continue_prompts(model, prompts, padding=3, content=23))


REQUESTS = [
    Request(
        prompt=prompt,
        max_new_tokens=2 + place % 2,
        seed=place,
        sampling=Sampling(temperature=heat, repetition_penalty=1.2, top_p=0.95),
        logprobs=True,
    )
    for place, (prompt, heat) in enumerate(zip(PROMPTS, (0.0, 1.3, 0.9, 2.0), strict=True))
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["counter", "mixed layers"])
def test_in_a_deterministic_batch_no_bit_depends_on_the_neighbours(
    name: str, dtype: torch.dtype
) -> None:
    """Equal log-probabilities, not near ones."""
    model = find_network(name, dtype)
    single = [complete(model, [request])[0] for request in REQUESTS]
    for order in (*COMPOSITIONS, (3, 1, 0, 2)):
        asked = [REQUESTS[row] for row in order]
        found = complete(model, asked, deterministic_batch=True, batch_size=3)
        assert found == [single[row] for row in order]


# ---- what leaves the range of a number format on the way to a result that does not


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("label", ["Q=K-V@diag-mean", "Q=K-V@diag-norm"])
def test_diagonals_stay_in_range(label: str, dtype: torch.dtype) -> None:
    """The fourth powers that the norm sums leave the range of float16."""
    config = make_config(label, causal=True)
    squares = (30 + 20 * torch.rand(2, 3, 61, generator=torch.Generator().manual_seed(149))).to(
        dtype
    )
    scores = torch.zeros(2, 3, 61, 61, dtype=dtype)
    found = normalise_diagonal(scores, squares, config, valid=None, documents=None)
    exact = normalise_diagonal(
        scores.double(), squares.double(), config, valid=None, documents=None
    )
    assert float(squares.double().square().sum(dim=-1).min()) > torch.finfo(torch.float16).max
    assert found.dtype == dtype
    assert distance(found.double(), exact) <= CEILINGS[dtype][0]
