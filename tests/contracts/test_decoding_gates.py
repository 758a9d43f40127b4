"""Decoding is one function: however a text is cut, cropped, padded, batched, stored or computed.

Logic is tested in float64, where rounding is about 1e-14 and mistakes are above 1e-6. In fewer bits
the gate is what rounding does to this network, measured against float64, below a ceiling that no
network may pass. Errors are in deviations of the logits. Every network meets every number format;
by default one format each, by turns.
"""

import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from qkvary.arch.attention import Kernel, ValueRope
from qkvary.arch.caches import CacheLayout, CacheOptions
from qkvary.arch.networks import Positions
from qkvary.inference.decoding import complete, pad_left, prefill
from qkvary.inference.requests import Request, Sampling
from qkvary.inference.stepping import Stepper
from qkvary.nn.cache import KVCache
from qkvary.nn.language_model import LanguageModel
from qkvary.nn.terms import normalise_diagonal
from tests.contracts.variant_cases import (
    distance,
    feed_network,
    make_config,
    make_language_model_config,
    randomize,
)

CEILINGS = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (1e-5, 1e-9),
    torch.float16: (2e-2, 5e-5),
    torch.bfloat16: (0.15, 3e-3),
}
"""Bounds of the largest error and of the largest KL divergence of a position, by dtype."""
DTYPES = tuple(CEILINGS)
SPREAD = 4.0
"""Maximum ratio of the errors of two ways that round equally often, both against float64."""
VOCABULARY, MAX_TOKENS = 13, 17
DEVIATION = 2.0
"""Standard deviation of the logits: flat ones hide mistakes."""


def error(found: Tensor, exact: Tensor) -> float:
    """The largest difference over the deviation of what is exact; infinite for a NaN."""
    largest = float((found.double() - exact).abs().max() / exact.std())
    return math.inf if math.isnan(largest) else largest


def divergence(found: Tensor, exact: Tensor) -> float:
    """The largest KL(exact || found) over positions, in nats."""
    p, q = exact.log_softmax(dim=-1), found.double().log_softmax(dim=-1)
    largest = float((p.exp() * (p - q)).sum(dim=-1).max())
    return math.inf if math.isnan(largest) else largest


def assert_one_function(exact: Tensor, whole: Tensor, **others: Tensor) -> None:
    """The gate: every way is as near to float64 as the whole sequence at once, and to that.

    Args:
        exact: Logits of the whole sequence in float64, by the same rounded weights.
        whole: The same in the number format that is judged; it calibrates the gate.
        others: Logits by other ways in that format.
    """
    ceiling, most = CEILINGS[whole.dtype]
    own = error(whole, exact)
    assert own <= ceiling, f"whole: {own:.2e} from float64"
    for name, logits in others.items():
        assert logits.dtype == whole.dtype
        off, lost = error(logits, exact), divergence(logits, exact)
        apart = float((logits.double() - whole.double()).abs().max() / exact.std())
        agree = float((logits.argmax(dim=-1) == exact.argmax(dim=-1)).double().mean())
        found = f"{name}: {off:.2e} from float64, {apart:.2e} from the whole ({own:.2e}), "
        found += f"KL {lost:.2e}, top-1 {agree:.3f}"
        assert max(off, apart) <= ceiling, found
        assert lost <= most, found
        if whole.dtype != torch.float64:
            assert apart <= SPREAD * max(off, own), found
            # Else a wrong way would widen the gate by its own error.
            assert off <= SPREAD * own, found


def _build(
    *labels: str, positions: Positions = "none", value_rope: ValueRope = "counter"
) -> LanguageModel:
    """A random network of a layer for each label, whose logits have the deviation wanted."""
    layers = tuple(make_config(label, causal=True, value_rope=value_rope) for label in labels)
    config = make_language_model_config(
        "QKV", positions=positions, tied_head=False, head_bias=False
    )
    config = dataclasses.replace(config, attention=layers, num_layers=len(layers))
    model = LanguageModel(config)
    randomize(model, seed=139)
    with torch.no_grad():
        logits = model.double()(torch.arange(4 * MAX_TOKENS).view(4, -1) * 5 % VOCABULARY)
        assert model.head_weight is not None
        model.head_weight.mul_(DEVIATION / logits.std())
    return model


def _two(label: str, **fields: object) -> Callable[[], LanguageModel]:
    return functools.partial(_build, label, label, **fields)  # type: ignore[arg-type]


NETWORKS: dict[str, Callable[[], LanguageModel]] = {
    "QKV": _two("QKV", positions="learned"),
    "GQA": _two("GQA-2@rotary"),
    "MQA": _two("MQA@alibi"),
    "Q-K=V": _two("Q-K=V", positions="sinusoidal"),
    "Q=K-V": _two("Q=K-V@rotary"),
    "Q=K=V": _two("Q=K=V@relative", positions="learned"),
    "Q=K-V+": _two("(Q=K-V)+"),
    "Q-MQA": _two("Q-MQA", positions="learned"),
    "I-K=V": _two("I-K=V@rotary"),
    "counter": _two("Q-K=V@rotary"),
    "value before rotation": _two("Q-GQA-2@rotary", value_rope="none"),
    "low rank": _two("Q-K[r3]-V[d/4]/2@rotary"),
    "low rank K=V": _two("Q-K[r7]=V", positions="learned"),
    "portable": _two("Q-GQA-2@decoupled-4@kv-norm"),
    "latent": _two("Q-K=V@decoupled-4@latent-7@kv-norm"),
    "window": _two("Q-K=V@rotary@w4"),
    "mixed layers": functools.partial(_build, "Q-MQA@rotary", "QKV@w4", "Q-K=V@alibi"),
}
"""Every sharing with every meaning of heads, and positions of every kind."""


@functools.cache
def find_network(name: str, dtype: torch.dtype = torch.float64) -> LanguageModel:
    """A network in evaluation mode; in fewer bits the same one with rounded weights."""
    if dtype == torch.float64:
        return NETWORKS[name]().double().eval()
    return copy.deepcopy(find_network(name)).to(dtype)


@functools.cache
def exact_network(name: str, dtype: torch.dtype) -> LanguageModel:
    """The weights of a number format in float64, so that the computation alone is judged."""
    return copy.deepcopy(find_network(name, dtype)).double()


def with_kernel(model: LanguageModel, kernel: Kernel) -> LanguageModel:
    """The same network with a kernel pinned in every layer."""
    layers = tuple(dataclasses.replace(layer, kernel=kernel) for layer in model.config.layers)
    changed = LanguageModel(dataclasses.replace(model.config, attention=layers))
    changed = changed.to(model.embedding.dtype)
    changed.load_state_dict(model.state_dict())
    return changed.eval()


def random_tokens(rows: int, length: int, *, seed: int = 7) -> Tensor:
    """Any text."""
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


# ---- every way to decode

CPU = torch.device("cpu")


def in_every_format(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test for every network and number format: by default one format each, by turns."""
    cases = [
        pytest.param(name, dtype, marks=pytest.mark.slow if (one + other) % len(DTYPES) else ())
        for one, name in enumerate(NETWORKS)
        for other, dtype in enumerate(DTYPES)
    ]
    return pytest.mark.parametrize(("name", "dtype"), cases)(test)


def make_cache(model: LanguageModel, options: CacheOptions | None = None) -> KVCache:
    return KVCache(model.config.layers, max_tokens=MAX_TOKENS, options=options)


def whole(model: LanguageModel, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model(tokens)


@in_every_format
def test_every_route_is_one_function(name: str, dtype: torch.dtype) -> None:
    """Kernels, layouts and storages, a text that is cropped and goes on included."""
    model, tokens = find_network(name, dtype), random_tokens(2, 11)
    preallocated = make_cache(model, CacheOptions(layout="rotated", storage="preallocated"))
    feed_network(
        model, (tokens[:, :3] + torch.tensor([0, 0, 1])) % VOCABULARY, [2, 1], preallocated
    )
    preallocated.crop(2)
    start = feed_network(model, tokens[:, :2], [2], make_cache(model))
    folded = make_cache(model, CacheOptions(layout="split", kernel="folded"))
    made_again = CacheOptions(layout="latent" if "low rank" in name else "input")
    layouts: tuple[CacheLayout, ...] = ("sources", "rotated")
    stepped = {f"stepped, {layout}": step_through(model, tokens, layout) for layout in layouts}
    assert_one_function(
        whole(exact_network(name, dtype), tokens),
        whole(model, tokens),
        sdpa=whole(with_kernel(model, "sdpa"), tokens),
        cached=feed_network(model, tokens, [5, 1, 1, 4], make_cache(model)),
        cropped=torch.cat(
            (start, feed_network(model, tokens[:, 2:], [1, 5, 3], preallocated)), dim=1
        ),
        folded=feed_network(model, tokens, [6, 1, 1, 3], folded),
        made_again=feed_network(model, tokens, [4, 1, 6], make_cache(model, made_again)),
        **stepped,
    )


def step_through(model: LanguageModel, tokens: Tensor, layout: CacheLayout) -> Tensor:
    """Logits of steps as one native call, where that supports the network, after 5 tokens."""
    options = CacheOptions(layout=layout, storage="preallocated", kernel="native")
    cache = make_cache(model, options)
    read = feed_network(model, tokens[:, :5], [5], cache)
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
    padding: int | None = None,
    content: int = 0,
) -> Tensor:
    """Logits after every prompt and the tokens that follow, [rows, 3, vocabulary].

    Args:
        model: The network.
        prompts: One a row.
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
    cache = make_cache(model)
    with torch.no_grad():
        logits = [prefill(model, tokens, cache=cache, attention_mask=mask, chunk=3)]
        for token in FOLLOWING:
            if mask is not None:
                mask = torch.cat((mask, mask.new_ones(len(prompts), 1)), dim=1)
            row = torch.full((len(prompts), 1), token)
            logits.append(model(row, cache=cache, attention_mask=mask)[:, -1])
    return torch.stack(logits, dim=1)


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
    for order in ((0, 1), (0, 2), (1, 2), *itertools.permutations(range(3)), (3, 1, 0, 2)):
        asked = [REQUESTS[row] for row in order]
        found = complete(model, asked, deterministic_batch=True, batch_size=3)
        assert found == [single[row] for row in order]


# ---- what leaves the range of a number format on the way to a result that does not


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("label", ["Q=K-V@diag-mean", "Q=K-V@diag-norm"])
def test_diagonals_stay_in_range(label: str, dtype: torch.dtype) -> None:
    """The fourth powers that the norm sums leave the range of float16."""
    config = make_config(label, causal=True)
    drawn = torch.rand(2, 3, 61, generator=torch.Generator().manual_seed(149))
    squares, scores = (30 + 20 * drawn).to(dtype), torch.zeros(2, 3, 61, 61, dtype=dtype)
    found, exact = (
        normalise_diagonal(one, own, config, valid=None, documents=None)
        for one, own in ((scores, squares), (scores.double(), squares.double()))
    )
    assert float(squares.double().square().sum(dim=-1).min()) > torch.finfo(torch.float16).max
    assert found.dtype == dtype
    assert distance(found.double(), exact) <= CEILINGS[dtype][0]
